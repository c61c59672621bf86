"""Bytes of bodies under way: who gets room, who waits, who is refused."""

from __future__ import annotations

import asyncio

import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.body_budget import MOST_WAITING, BodyBudget


async def test_what_does_not_fit_waits_for_room() -> None:
    """A body waits until another one has given its room back."""
    budget = BodyBudget(100)
    first = await budget.take(b"a", 60)
    second = asyncio.create_task(budget.take(b"b", 60))
    await asyncio.sleep(0)
    assert not second.done()
    budget.give_back(first)
    share = await second
    assert budget.taken == 60
    budget.give_back(share)
    budget.give_back(share)
    assert budget.taken == 0


async def test_who_waits_too_long_is_refused() -> None:
    """After a moment it is a 503 that says when to come again, and nothing stays taken for it."""
    texts: list[str] = []
    budget = BodyBudget(100, texts.append)
    first = await budget.take(b"a", 100)
    with pytest.raises(ApiError, match="request bodies already") as caught:
        await budget.take(b"b", 1, seconds=0.01)
    assert caught.value.status == 503
    assert dict(caught.value.headers)["retry-after"]
    assert texts == ["bodies"]
    budget.give_back(first)
    assert budget.taken == 0
    await budget.take(b"b", 100)


async def test_one_caller_leaves_room_to_others() -> None:
    """A caller that has its part waits, and those behind it pass; alone it may have one body of any size."""
    budget = BodyBudget(100)
    shares = [await budget.take(b"a", 25) for _ in range(3)]
    more = asyncio.create_task(budget.take(b"a", 25))
    await asyncio.sleep(0)
    other = await budget.take(b"b", 25)
    assert not more.done()
    for share in (*shares, other):
        budget.give_back(share)
    budget.give_back(await more)
    whole = await budget.take(b"a", 100)
    assert budget.taken == 100
    budget.give_back(whole)


async def test_who_leaves_while_waiting_takes_nothing() -> None:
    """Cancelled before its room was there, or in the moment in which it came."""
    budget = BodyBudget(100)
    first = await budget.take(b"a", 100)
    waiting = [asyncio.create_task(budget.take(b"b", 10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    budget.give_back(first)
    waiting[1].cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, True, False]
    assert budget.taken == 10


async def test_those_that_wait_are_bounded() -> None:
    """One more is refused at once."""
    budget = BodyBudget(100)
    first = await budget.take(b"a", 100)
    waiting = [asyncio.create_task(budget.take(b"b", 10)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(ApiError):
        await budget.take(b"c", 10, seconds=60)
    for entry in waiting:
        entry.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    budget.give_back(first)
    assert budget.taken == 0


async def test_an_estimate_is_given_back_in_part() -> None:
    """A body of unknown length takes the most, and gives back what it did not need."""
    budget = BodyBudget(100)
    share = await budget.take(b"a", 100)
    budget.shrink(share, 30)
    assert budget.taken == 30
    budget.give_back(share)
    assert budget.taken == 0
