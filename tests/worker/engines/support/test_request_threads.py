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


def ask(slots: Slots, state: threading.Barrier | None = None) -> tuple[Recorder, Job, Callable[[], None]]:
    sink = Recorder()
    job = Job(PreprocessedRequest(model="m", token_ids=[1]), sink, state)
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


def test_the_thread_that_was_busy_last_is_asked_first() -> None:
    """Its caches are warm; those that wait longer than it sleep on, and all work when there is work for all."""
    names: list[str] = []
    together = threading.Barrier(3)

    def answer(job: Job) -> None:
        names.append(threading.current_thread().name)
        if job.state is not None:
            job.state.wait(10)
        slots.finish(job, LENGTH)

    slots = Slots("engine", 3, 8, answer)

    async def body(slots: Slots) -> None:
        sinks = [ask(slots, together)[0] for _ in range(3)]
        for sink in sinks:
            assert await sink.end() == LENGTH
        assert len(set(names)) == 3
        await until("all of them wait", lambda: len(slots._line._idle) == 3)
        names.clear()
        for _ in range(20):
            assert await ask(slots)[0].end() == LENGTH
        assert len(set(names)) == 1

    run(slots, body)


def test_a_thread_that_is_still_tidying_up_is_waited_for_by_one_job() -> None:
    """Its request's end is told, the engine has it for a while longer: a second job wakes another thread."""
    tidy, names = threading.Event(), []

    def answer(job: Job) -> None:
        names.append(threading.current_thread().name)
        slots.finish(job, LENGTH)
        if len(names) == 1:
            tidy.wait(10)

    slots = Slots("engine", 2, 8, answer)

    async def body(slots: Slots) -> None:
        assert await ask(slots)[0].end() == LENGTH
        waiting, taken = ask(slots)[0], ask(slots)[0]
        await until("one of them has a thread", lambda: waiting.ends or taken.ends)
        tidy.set()
        assert [await waiting.end(), await taken.end()] == [LENGTH, LENGTH]

    run(slots, body)


def test_output_leaves_when_a_turn_is_over() -> None:
    """What the threads said until then is handed over before `on_step`'s callback, and it is called for each turn."""
    seen: list[list[int]] = []

    def answer(job: Job) -> None:
        slots.push(job, [7])
        slots.finish(job, LENGTH)

    slots = Slots("engine", 1, 4, answer)

    async def body(slots: Slots) -> None:
        sink = Recorder()
        slots.on_step(lambda: seen.append(list(sink.produced)))
        slots.submit(Job(PreprocessedRequest(model="m", token_ids=[1]), sink))
        await sink.end()
        await until("a turn is over", lambda: bool(seen))
        assert seen[-1] == [7]

    run(slots, body)
