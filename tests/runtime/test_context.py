"""A request's stop signal, pushed and awaited."""

from __future__ import annotations

import asyncio

import pytest

from dynamo.runtime.context import Context


def test_identity() -> None:
    """An id is made where none is given; metadata is a copy."""
    metadata = {"a": "b"}
    context = Context(metadata=metadata)
    metadata["a"] = "c"
    assert context.metadata == {"a": "b"}
    assert context.id() != Context().id()
    assert Context("x").id() == "x"


def test_stop_and_kill() -> None:
    """Stopping is gentle, killing includes stopping."""
    gentle, hard = Context(), Context()
    gentle.stop_generating()
    hard.kill()
    assert (gentle.is_stopped(), gentle.is_killed()) == (True, False)
    assert (hard.is_stopped(), hard.is_killed()) == (True, True)


def test_callbacks_run_once_and_all(caplog: pytest.LogCaptureFixture) -> None:
    """Each callback runs once, also where an earlier one fails; late ones run at once, forgotten ones never."""
    context, calls = Context(), []

    def forgotten() -> None:
        calls.append("forgotten")

    def broken() -> None:
        raise KeyError("bug")

    context.on_stop(broken)
    context.on_stop(forgotten)
    context.on_stop(lambda: calls.append("first"))
    context.forget(forgotten)
    context.forget(forgotten)
    context.stop_generating()
    context.kill()
    context.on_stop(lambda: calls.append("late"))
    assert calls == ["first", "late"]
    assert "stop callback failed" in caplog.text


def test_children_follow() -> None:
    """A child stops with its parent, the other way round nothing happens; a detached one lives on."""
    parent = Context("p", {"a": "b"}, deadline=5.0)
    child, other, detached = parent.child(), parent.child("c"), parent.detached()
    assert (child.id(), other.id(), child.metadata, child.deadline) == ("p", "c", {"a": "b"}, 5.0)
    other.kill()
    assert not parent.is_stopped()
    parent.kill()
    assert child.is_killed()
    assert not detached.is_stopped()


async def test_waiting() -> None:
    """`async_killed_or_stopped` returns True when it happens, or at once where it did."""
    context = Context()
    waiting = context.async_killed_or_stopped()
    given_up = context.async_killed_or_stopped()
    await asyncio.sleep(0)
    given_up.cancel()
    context.stop_generating()
    assert await waiting is True
    assert await context.async_killed_or_stopped() is True
