"""The live view of the console: one sampler for all viewers, bounded, and nothing while nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from dynamo.frontend.console import feed as feeds
from dynamo.frontend.console.admission import MOST_VIEWERS, displaced
from dynamo.frontend.console.feed import ConsoleFeed, Viewer
from dynamo.frontend.errors import ApiError
from dynamo.frontend.request_log.placements import RecentPlacements


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that looks often, and gives up soon."""
    for name, seconds in {"EVERY": 0.01, "QUIET": 0.05, "STALLED": 0.2}.items():
        monkeypatch.setattr(feeds, name, seconds)


class Samples:
    """What is sampled, and how often."""

    def __init__(self) -> None:
        self.text, self.count = b"data: 0\n\n", 0

    def __call__(self) -> bytes:
        self.count += 1
        if self.text == b"broken":
            raise ValueError("a mistake of ours")
        return self.text


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def begin() -> tuple[ConsoleFeed, Samples, RecentPlacements]:
    samples, recent = Samples(), RecentPlacements()
    return ConsoleFeed(samples, recent), samples, recent


def enter(feed: ConsoleFeed, caller: bytes = b"", cuts: list[bytes] | None = None) -> Viewer:
    noted = [] if cuts is None else cuts
    return feed.enter(caller, lambda: noted.append(caller))


def test_one_sample_is_for_all_and_none_for_nobody() -> None:
    """Twenty viewers cost as many samples as one; the last that leaves ends it, and routing keeps nothing more."""

    async def look() -> None:
        feed, samples, recent = begin()
        streams = [feed.events(enter(feed)) for _ in range(20)]
        assert [await anext(stream) for stream in streams] == [b"data: 0\n\n"] * 20
        assert (samples.count < 10, recent.watched, len(feed)) == (True, True, 20)
        samples.text = b"data: 1\n\n"
        assert [await anext(stream) for stream in streams] == [b"data: 1\n\n"] * 20
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        count = samples.count
        await asyncio.sleep(0.1)
        assert (samples.count, recent.watched, len(feed)) == (count, False, 0)
        assert await anext(feed.events(enter(feed))) == b"data: 1\n\n"

    run(look())


def test_a_quiet_stream_says_that_it_lives_and_a_mistake_ends_none() -> None:
    """Without news a comment comes; a sample that fails leaves the last one standing."""

    async def look() -> None:
        feed, samples, _ = begin()
        stream = feed.events(enter(feed))
        assert await anext(stream) == b"data: 0\n\n"
        assert await anext(stream) == b":\n\n"
        samples.text = b"broken"
        assert await anext(stream) == b":\n\n"
        samples.text = b"data: 2\n\n"
        assert await anext(stream) == b"data: 2\n\n"

    run(look())


def test_a_slow_viewer_gets_the_latest_only_and_is_cut_at_last() -> None:
    """It has room for one snapshot, whatever happens meanwhile; others don't wait for it."""

    async def look() -> None:
        feed, samples, _ = begin()
        cuts: list[bytes] = []
        slow = feed.events(enter(feed, b"slow", cuts))
        quick = feed.events(enter(feed, b"quick", cuts))
        for number in range(5):
            samples.text = f"data: {number}\n\n".encode()
            while await anext(quick) != samples.text:
                pass
        assert await anext(slow) == b"data: 4\n\n"
        while b"slow" not in cuts:
            samples.text += b" "
            await anext(quick)
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        assert (len(feed), cuts) == (1, [b"slow"])

    run(look())


def test_a_viewer_whose_stream_never_begins_keeps_no_place() -> None:
    """Its client left before the first byte: nobody iterates, and the sampler removes it."""

    async def look() -> None:
        feed, samples, _ = begin()
        enter(feed)
        while len(feed):
            samples.text += b" "
            await asyncio.sleep(0.01)
        count = samples.count
        await asyncio.sleep(0.05)
        assert samples.count == count

    run(look())


def test_a_thousand_viewers_of_one_caller_lock_nobody_out() -> None:
    """They have all places but one refuses more; another caller gets a place of theirs, and so do as many as come."""

    async def look() -> None:
        feed, _, _ = begin()
        for _ in range(MOST_VIEWERS):
            enter(feed, b"flood")
        for _ in range(1000 - MOST_VIEWERS):
            with pytest.raises(ApiError) as refused:
                enter(feed, b"flood")
            assert (refused.value.status, refused.value.code) == (503, "viewers")
        streams = [feed.events(enter(feed, b"other")) for _ in range(MOST_VIEWERS // 2)]
        assert len(feed) == MOST_VIEWERS
        with pytest.raises(ApiError):
            enter(feed, b"other")
        enter(feed, b"third")
        assert await anext(streams[-1]) == b"data: 0\n\n"

    run(look())


def test_who_goes_for_a_newcomer() -> None:
    """The oldest viewer of whoever has most, unless the newcomer would have as many."""
    assert displaced([b"a", b"b", b"b", b"b"], b"a") == 1
    assert displaced([b"a", b"b", b"b"], b"b") is None
    assert displaced([b"a", b"a"], b"b") == 0
    assert displaced([b"a", b"b"], b"c") is None


def test_a_frontend_that_leaves_lets_its_viewers_go() -> None:
    """At once, and takes no other."""

    async def look() -> None:
        feed, _, recent = begin()
        streams = [feed.events(enter(feed)) for _ in range(3)]
        feed.close()
        for stream in streams:
            with suppress(StopAsyncIteration):
                await anext(stream)
                await anext(stream)
        assert (len(feed), recent.watched) == (0, False)
        with pytest.raises(ApiError):
            enter(feed)

    run(look())
