"""The threads of an engine that blocks one per request: what callers get when an answer, or the engine, breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.waiting import until
from tests.worker.engine_rigs import Recorder

from dynamo.llm.protocols import LENGTH, PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines import slots as module
from dynamo.worker.engines.slots import Job, Slots


class Panic(BaseException):
    """As an extension written in Rust raises: no `Exception`."""


def run(slots: Slots, body: Callable[[Slots], Awaitable[None]]) -> None:
    async def main() -> None:
        slots.start()
        try:
            async with asyncio.timeout(20):
                await body(slots)
        finally:
            await slots.stop()

    asyncio.run(main())


def ask(slots: Slots) -> tuple[Recorder, Job, Callable[[], None]]:
    sink = Recorder()
    job = Job(PreprocessedRequest(model="m", token_ids=[1]), sink)
    return sink, job, slots.submit(job)


def test_an_exception_is_the_requests_own() -> None:
    """What an answer raises fails that request, by its kind; the slot serves the next one."""
    raised = iter([InvalidArgument("no"), ValueError("odd"), None])

    def answer(job: Job) -> None:
        if (error := next(raised)) is not None:
            raise error
        slots.push(job, [7])
        slots.finish(job, LENGTH)

    slots = Slots("engine", 1, 4, answer)

    async def body(slots: Slots) -> None:
        first, second, third = (ask(slots)[0] for _ in range(3))
        assert isinstance(await first.end(), InvalidArgument)
        assert isinstance(error := await second.end(), EngineError)
        assert "engine: ValueError: odd" in str(error)
        assert (await third.end(), third.produced) == (LENGTH, [7])

    run(slots, body)


def test_a_panic_is_the_engines_death() -> None:
    """Every open request fails as a thing to try elsewhere, `failed` says why, and nothing new is taken."""
    busy, go = threading.Barrier(3), threading.Event()

    def answer(job: Job) -> None:
        busy.wait(10)
        go.wait(10)
        raise Panic("index out of bounds")

    slots = Slots("engine", 2, 4, answer)

    async def body(slots: Slots) -> None:
        sinks = [ask(slots)[0] for _ in range(4)]
        await asyncio.to_thread(busy.wait, 10)
        go.set()
        assert isinstance(await slots.failed(), Panic)
        for sink in sinks:
            assert isinstance(error := await sink.end(), EngineShutdown)
            assert "index out of bounds" in str(error)
        with pytest.raises(EngineShutdown, match="has died"):
            ask(slots)

    run(slots, body)


def test_what_is_aborted_in_the_queue_is_never_answered() -> None:
    """It keeps its place until a thread comes by, and the queue has a bound."""
    go, seen = threading.Event(), []

    def answer(job: Job) -> None:
        seen.append(job)
        go.wait(10)
        slots.finish(job, LENGTH)

    slots = Slots("engine", 1, 1, answer)

    async def body(slots: Slots) -> None:
        first, job, _ = ask(slots)
        while slots.load().running == 0:  # noqa: ASYNC110 - a thread says nothing of its begin
            await asyncio.sleep(0.001)
        second, _, abort = ask(slots)
        with pytest.raises(CapacityExceeded):
            ask(slots)
        abort()
        go.set()
        assert await first.end() == LENGTH
        third, last, _ = ask(slots)
        assert await third.end() == LENGTH
        assert (second.ends, seen) == ([], [job, last])

    run(slots, body)


def test_threads_that_do_not_end_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together have the time that one has: a leaving worker isn't held up by their number."""
    monkeypatch.setattr(module, "_JOIN_SECONDS", 0.2)
    asked: list[float] = []
    stuck = threading.Event()

    class Watched(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            if self.name.startswith("engine"):
                asked.append(timeout or 0.0)
            super().join(timeout)

    monkeypatch.setattr(threading, "Thread", Watched)
    slots = Slots("engine", 3, 4, lambda job: (stuck.wait(30), None)[1])

    async def body(slots: Slots) -> None:
        for _ in range(3):
            ask(slots)
        await until("all of them work", lambda: slots.load().running == 3)

    try:
        run(slots, body)
        assert len(asked) == 3
        assert sum(asked) < 2 * module._JOIN_SECONDS
    finally:
        stuck.set()
