"""Engines that block a thread per running request: their threads.

llama.cpp's server core and mistral.rs are such engines. Each slot is a thread that answers
one request at a time. A thread that has told the end of its request is back in a moment (the
engine tidies up), so that the next job waits for it instead of waking another one: two in the
engine at once hold each other up, and its caches are warm (`bench/RESULTS.md`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from dynamo.runtime.errors import DynamoException, EngineError
from dynamo.worker.engine import Abort, EngineLoad, Sink, VectorSink
from dynamo.worker.engines.support.loop_bridge import ToLoop
from dynamo.worker.engines.support.open_requests import OpenRequests
from dynamo.worker.engines.support.request_checks import check_open

_JOIN_SECONDS: Final = 10.0
"""That all threads together may take to end."""


class ThreadedRequest:
    """One request. Its thread looks at `wanted` and may clear it; the loop alone uses `sink`."""

    __slots__ = ("over", "request", "sink", "state", "wanted")

    def __init__(self, request: Any, sink: Sink | VectorSink, state: Any = None) -> None:
        """Begin a request; `request` and `state` are for `answer` alone."""
        self.request, self.state = request, state
        self.sink = sink
        self.wanted = True
        self.over = False
        """Its end is told, and its thread will be back."""


class _Line:
    """Jobs that wait, and threads that wait for them, the last one that came first. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[ThreadedRequest] = deque()
        self._idle: list[threading.Lock] = []
        self._back = 0
        """Threads that will be here in a moment."""
        self._closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: ThreadedRequest) -> None:
        """Put a job; wakes a thread, unless enough are on their way back."""
        with self._lock:
            self._jobs.append(job)
            gate = self._idle.pop() if self._idle and len(self._jobs) > self._back else None
        if gate is not None:
            gate.release()

    def leaves(self, job: ThreadedRequest) -> None:
        """Note that the thread of `job` has told its end, and will ask for the next one."""
        with self._lock:
            self._back += not job.over
            job.over = True

    def next(self, gate: threading.Lock, back: bool) -> ThreadedRequest | None:
        """Wait at `gate`, a lock of the thread's own that is held, for a job; None: there is none.

        `back`: it was said of its last job that it `leaves`.
        """
        while True:
            with self._lock:
                self._back -= back
                back = False
                if self._closed:
                    return None
                if self._jobs:
                    return self._jobs.popleft()
                self._idle.append(gate)
            gate.acquire()

    def close(self) -> None:
        """End all threads; what waits stays undone."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for gate in idle:
            gate.release()


class RequestThreads:
    """`answer` runs in a thread, once per job; it says what it makes with `push`, `finish` and `fail`, and looks at
    `Job.wanted` between tokens. An exception of it is the request's; anything beyond (a panic of an extension
    written in Rust is no `Exception`) is the engine's death."""

    def __init__(self, engine: str, count: int, max_waiting: int, answer: Callable[[ThreadedRequest], None]) -> None:
        self._engine, self._count, self._max_waiting, self._answer = engine, count, max_waiting, answer
        self._line = _Line()
        self._open: OpenRequests[ThreadedRequest] = OpenRequests()
        self._busy = [False] * count
        """Of each thread, set by itself: to tell the loop would wake it, twice a request."""
        self._threads: list[threading.Thread] = []
        self._death: asyncio.Future[BaseException] | None = None

    def start(self) -> None:
        """Start the threads, for the running loop."""
        self._loop, self._death = ToLoop(), asyncio.get_running_loop().create_future()
        for number in range(self._count):
            thread = threading.Thread(target=self._work, args=(number,), name=f"{self._engine}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    async def stop(self) -> None:
        """Fail what is open with `EngineShutdown`, then wait for the threads, for a while."""
        for job in self._open.end_all():
            job.wanted = False
        self._line.close()
        await asyncio.to_thread(self._join)
        self._threads.clear()

    def _join(self) -> None:
        end = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    async def failed(self) -> BaseException:
        """Wait until a thread dies; why it did."""
        assert self._death is not None
        return await asyncio.shield(self._death)

    def on_step(self, flush: Callable[[], None]) -> None:
        """Call it as `Stepping` has it."""
        self._loop.after = flush

    def load(self) -> EngineLoad:
        """Return how many run and wait."""
        running = sum(self._busy)
        return EngineLoad(running=running, waiting=max(0, len(self._open) - running))

    def submit(self, job: ThreadedRequest) -> Abort:
        """Queue a job; `CapacityExceeded` where there are too many, `EngineShutdown` where the engine is dead."""
        self._open.check_closed()
        # The queue itself is counted: what was aborted stays in it until a thread comes by.
        here = len(self._line) + sum(self._busy)
        check_open(here, self._count + self._max_waiting)
        self._open.add(job, job.sink)
        self._line.put(job)

        def abort() -> None:
            job.wanted = False
            self._open.drop(job)

        return abort

    # -- for `answer`, in the threads

    def push(self, job: ThreadedRequest, *produced: Any) -> None:
        """Push what a job's sink takes: tokens and extras, or the number of an input and its vector."""
        self._loop.tell(self._open.push, job, *produced)

    def finish(self, job: ThreadedRequest, *ending: Any, produced: tuple[Any, ...] | None = None) -> None:
        """End a job well: with a reason and extras, where its sink takes them; after `produced`, its last output."""
        job.wanted = False
        self._loop.tell(self._finish, job, produced, ending)
        self._line.leaves(job)

    def fail(self, job: ThreadedRequest, error: DynamoException) -> None:
        """End a job badly."""
        job.wanted = False
        self._loop.tell(self._open.fail, job, error)
        self._line.leaves(job)

    def _work(self, number: int) -> None:
        gate, back = threading.Lock(), False
        gate.acquire()
        try:
            while (job := self._line.next(gate, back)) is not None:
                if job.wanted:
                    self._busy[number] = True
                    self._try(job)
                    self._busy[number] = False
                back = job.over
                del job  # with its prompt: the next one may come hours later
        except BaseException as error:  # of the engine, not of a request; the thread ends with it
            self._loop.tell(self._die, error)

    def _try(self, job: ThreadedRequest) -> None:
        try:
            self._answer(job)
        except DynamoException as error:
            self.fail(job, error)
        except Exception as error:  # belongs to this request, whatever the extension raises
            self.fail(job, EngineError(f"{self._engine}: {type(error).__name__}: {error}"))

    # -- on the loop

    def _finish(self, job: ThreadedRequest, produced: tuple[Any, ...] | None, ending: tuple[Any, ...]) -> None:
        if produced is not None:
            self._open.push(job, *produced)
        self._open.finish(job, *ending)

    def _die(self, error: BaseException) -> None:
        """Fail all jobs, retryably for the callers: another worker has an engine that lives."""
        assert self._death is not None
        if not self._death.done():
            self._death.set_result(error)
        for job in self._open.end_all(f"{self._engine} has died: {error}", died=True):
            job.wanted = False
