"""Tasks that have an owner: kept until they end, heard of when they fail."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from dynamo.runtime.process.tasks import TaskOwner

log = logging.getLogger(__name__)


async def _fail() -> None:
    raise ValueError("broken")


async def test_a_task_that_only_its_owner_knows_is_not_collected() -> None:
    """asyncio itself holds tasks weakly."""
    owner, gate, passed = TaskOwner(log), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        await gate.wait()
        passed.set()

    owner.start(wait(), "waits")
    await asyncio.sleep(0)
    gc.collect()
    assert len(owner) == 1
    gate.set()
    await owner.ended()
    assert passed.is_set()
    assert len(owner) == 0


def test_what_a_task_raises_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else hears of it."""

    async def main() -> None:
        owner = TaskOwner(log)
        owner.start(_fail(), "the ping")
        await owner.ended()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("ERROR", "the ping failed")]


def test_what_a_kept_task_raises_is_its_waiters(caplog: pytest.LogCaptureFixture) -> None:
    """Who made the task reports its failure: it isn't told twice."""

    async def main() -> None:
        owner, task = TaskOwner(log), asyncio.ensure_future(_fail())
        owner.keep(task)
        assert len(owner) == 1
        with pytest.raises(ValueError, match="broken"):
            await task
        assert len(owner) == 0

    asyncio.run(main())
    assert caplog.records == []


def test_cancelled_tasks_end_silently(caplog: pytest.LogCaptureFixture) -> None:
    """An end that was wanted is no failure."""

    async def main() -> None:
        owner = TaskOwner(log)
        task = owner.start(asyncio.sleep(60), "sleep")
        owner.cancel()
        await owner.ended()
        assert task.cancelled()

    asyncio.run(main())
    assert caplog.records == []


async def test_waiting_for_the_end_has_a_limit() -> None:
    """A task that doesn't end keeps nobody."""
    owner = TaskOwner(log)
    owner.start(asyncio.sleep(60), "sleep")
    await owner.ended(0.01)
    assert len(owner) == 1
    owner.cancel()
    await owner.ended()
