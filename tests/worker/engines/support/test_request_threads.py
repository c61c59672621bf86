"""The threads of an engine that blocks one per request: what callers get when an answer, or the engine, breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.waiting import until
from tests.worker.engine_rigs import Recorder

from dynamo.llm.protocols import LENGTH, PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, Disconnected, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.support import request_threads as module
from dynamo.worker.engines.support.request_threads import RequestThreads, ThreadedRequest


class Panic(BaseException):
    """As an extension written in Rust raises: no `Exception`."""


def run(threads: RequestThreads, body: Callable[[RequestThreads], Awaitable[None]]) -> None:
    async def main() -> None:
        threads.start()
        try:
            async with asyncio.timeout(20):
                await body(threads)
        finally:
            await threads.stop()

    asyncio.run(main())


def ask(
    threads: RequestThreads, state: threading.Barrier | None = None
) -> tuple[Recorder, ThreadedRequest, Callable[[], None]]:
    sink = Recorder()
    job = ThreadedRequest(PreprocessedRequest(model="m", token_ids=[1]), sink, state)
    return sink, job, threads.submit(job)


def test_an_exception_is_the_requests_own() -> None:
    """What an answer raises fails that request, by its kind; the slot serves the next one."""
    raised = iter([InvalidArgument("no"), ValueError("odd"), None])

    def answer(job: ThreadedRequest) -> None:
        if (error := next(raised)) is not None:
            raise error
        threads.push(job, [7])
        threads.finish(job, LENGTH)

    threads = RequestThreads("engine", 1, 4, answer)

    async def body(threads: RequestThreads) -> None:
        first, second, third = (ask(threads)[0] for _ in range(3))
        assert isinstance(await first.end(), InvalidArgument)
        assert isinstance(error := await second.end(), EngineError)
        assert "engine: ValueError: odd" in str(error)
        assert (await third.end(), third.produced) == (LENGTH, [7])

    run(threads, body)


def test_a_panic_is_the_engines_death() -> None:
    """Every open request fails as a thing to try elsewhere, `failed` says why, and nothing new is taken."""
    busy, go = threading.Barrier(3), threading.Event()

    def answer(job: ThreadedRequest) -> None:
        busy.wait(10)
        go.wait(10)
        raise Panic("index out of bounds")

    threads = RequestThreads("engine", 2, 4, answer)

    async def body(threads: RequestThreads) -> None:
        sinks = [ask(threads)[0] for _ in range(4)]
        await asyncio.to_thread(busy.wait, 10)
        go.set()
        assert isinstance(await threads.failed(), Panic)
        for sink in sinks:
            # A lost worker: it may be one of these requests that killed it.
            assert isinstance(error := await sink.end(), Disconnected)
            assert "index out of bounds" in str(error)
        with pytest.raises(EngineShutdown, match="has died"):
            ask(threads)

    run(threads, body)


def test_what_is_aborted_in_the_queue_is_never_answered() -> None:
    """It keeps its place until a thread comes by, and the queue has a bound."""
    go, seen = threading.Event(), []

    def answer(job: ThreadedRequest) -> None:
        seen.append(job)
        go.wait(10)
        threads.finish(job, LENGTH)

    threads = RequestThreads("engine", 1, 1, answer)

    async def body(threads: RequestThreads) -> None:
        first, job, _ = ask(threads)
        while threads.load().running == 0:  # noqa: ASYNC110 - a thread says nothing of its begin
            await asyncio.sleep(0.001)
        second, _, abort = ask(threads)
        with pytest.raises(CapacityExceeded):
            ask(threads)
        abort()
        go.set()
        assert await first.end() == LENGTH
        third, last, _ = ask(threads)
        assert await third.end() == LENGTH
        assert (second.ends, seen) == ([], [job, last])

    run(threads, body)


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
    threads = RequestThreads("engine", 3, 4, lambda job: (stuck.wait(30), None)[1])

    async def body(threads: RequestThreads) -> None:
        for _ in range(3):
            ask(threads)
        await until("all of them work", lambda: threads.load().running == 3)

    try:
        run(threads, body)
        assert len(asked) == 3
        assert sum(asked) < 2 * module._JOIN_SECONDS
    finally:
        stuck.set()


def test_the_thread_that_was_busy_last_is_asked_first() -> None:
    """Its caches are warm; those that wait longer than it sleep on, and all work when there is work for all."""
    names: list[str] = []
    together = threading.Barrier(3)

    def answer(job: ThreadedRequest) -> None:
        names.append(threading.current_thread().name)
        if job.state is not None:
            job.state.wait(10)
        threads.finish(job, LENGTH)

    threads = RequestThreads("engine", 3, 8, answer)

    async def body(threads: RequestThreads) -> None:
        sinks = [ask(threads, together)[0] for _ in range(3)]
        for sink in sinks:
            assert await sink.end() == LENGTH
        assert len(set(names)) == 3
        await until("all of them wait", lambda: len(threads._line._idle) == 3)
        names.clear()
        for _ in range(20):
            assert await ask(threads)[0].end() == LENGTH
            await until("it waits again, too", lambda: len(threads._line._idle) == 3)
        assert len(set(names)) == 1

    run(threads, body)


def test_a_thread_that_is_still_tidying_up_is_waited_for_by_one_job() -> None:
    """Its request's end is told, the engine has it for a while longer: a second job wakes another thread."""
    tidy, names = threading.Event(), []

    def answer(job: ThreadedRequest) -> None:
        names.append(threading.current_thread().name)
        threads.finish(job, LENGTH)
        if len(names) == 1:
            tidy.wait(10)

    threads = RequestThreads("engine", 2, 8, answer)

    async def body(threads: RequestThreads) -> None:
        assert await ask(threads)[0].end() == LENGTH
        waiting, taken = ask(threads)[0], ask(threads)[0]
        await until("one of them has a thread", lambda: waiting.ends or taken.ends)
        tidy.set()
        assert [await waiting.end(), await taken.end()] == [LENGTH, LENGTH]

    run(threads, body)


def test_output_leaves_when_a_turn_is_over() -> None:
    """What the threads said until then is handed over before `on_step`'s callback, and it is called for each turn."""
    seen: list[list[int]] = []

    def answer(job: ThreadedRequest) -> None:
        threads.push(job, [7])
        threads.finish(job, LENGTH)

    threads = RequestThreads("engine", 1, 4, answer)

    async def body(threads: RequestThreads) -> None:
        sink = Recorder()
        threads.on_step(lambda: seen.append(list(sink.produced)))
        threads.submit(ThreadedRequest(PreprocessedRequest(model="m", token_ids=[1]), sink))
        await sink.end()
        await until("a turn is over", lambda: bool(seen))
        assert seen[-1] == [7]

    run(threads, body)
