"""Constraints are compiled outside of the worker's process before its engine sees them, in a time limit.

A text that takes its compiler down, or keeps it busy, is refused; requests without a constraint don't come by here.
`instance/serving.py` gives `Constrained.submit` those that have one, before the engine's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, DynamoException, EngineShutdown, InvalidArgument
from dynamo.worker.engine import Abort, Sink
from dynamo.worker.engines.constraints.checks import COMPILE_SECONDS, MOST_BYTES
from dynamo.worker.engines.constraints.process import LENGTH

log = logging.getLogger(__name__)

PROCESSES: Final = 2
WAITING: Final = 64
"""Constraints that may wait for a process."""
SECONDS: Final = 30.0
"""That one may take with its wait. Machines may be slow: what counts is CPU time, which the process looks at."""
REMEMBERED: Final = 4 * 1024 * 1024
"""Bytes of answers that are kept for those who ask the same again."""
Submit = Callable[[PreprocessedRequest, Sink], Abort]
Asked = Callable[[PreprocessedRequest, dict[str, Any]], dict[str, Any]]
"""What the compiler is asked for a request with a constraint."""
Made = dict[str, Any] | str
"""What the engine is told, or what is wrong."""


class Remembered:
    """Answers by the digest of what was asked; the oldest go first."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[bytes, tuple[Made, int]] = OrderedDict()

    def get(self, key: bytes) -> Made | None:
        kept = self._kept.get(key)
        return None if kept is None else kept[0]

    def put(self, key: bytes, made: Made, size: int) -> None:
        if key in self._kept or size > self._most:
            return
        self._kept[key] = (made, size)
        self._size += size
        while self._size > self._most:
            self._size -= self._kept.popitem(last=False)[1][1]


class ConstraintPool:
    """A few processes, made when they are needed."""

    def __init__(self, engine: str, processes: int = PROCESSES, seconds: float = SECONDS) -> None:
        self._engine, self._seconds = engine, seconds
        self._idle: list[_Compiler] = []
        self._all: set[_Compiler] = set()
        self._room = asyncio.Semaphore(processes)
        self._waiting = 0
        self._kept = Remembered()

    def remembered(self, wanted: dict[str, Any]) -> tuple[bytes, bytes, Made | None]:
        """Return the request, its digest, and the answer where it came before.

        Raises `InvalidArgument` for a large one.
        """
        try:
            data = msgspec.msgpack.encode((self._engine, wanted))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"guided decoding: what can't be sent on: {error}") from error
        if len(data) > MOST_BYTES:
            raise InvalidArgument(f"guided decoding: {len(data)} bytes, and {MOST_BYTES} are the most")
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return data, digest, self._kept.get(digest)

    async def compile(self, data: bytes, digest: bytes) -> dict[str, Any]:
        """Return what the engine is to be given.

        Raises `InvalidArgument`, or `CapacityExceeded` where others are before it.
        """
        if self._waiting >= WAITING:
            raise CapacityExceeded(f"{self._waiting} constraints wait to be compiled already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds), self._room:
                made = await self._asked(data)
        except TimeoutError:
            raise CapacityExceeded(f"a constraint could not be compiled within {self._seconds:g} s") from None
        finally:
            self._waiting -= 1
        self._kept.put(digest, made, len(data) + 512)
        return engine_form(made)

    async def _asked(self, data: bytes) -> Made:
        compiler = self._idle.pop() if self._idle else _Compiler()
        self._all.add(compiler)
        made = None
        try:
            made = await asyncio.to_thread(compiler.ask, data)
        finally:
            if made is not None:
                self._idle.append(compiler)
            else:  # also where nobody waits any more: it may be busy for long
                self._all.discard(compiler)
                compiler.kill()
        return compiler.why() if made is None else made

    async def stop(self) -> None:
        """End the processes."""
        compilers, self._idle = tuple(self._all), []
        self._all.clear()
        for compiler in compilers:
            compiler.kill()
        for compiler in compilers:
            await asyncio.to_thread(compiler.close)


class _Compiler:
    """One process. It is asked in a thread; `kill` is for the loop, and ends what the thread waits for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._unwanted = False

    def ask(self, data: bytes) -> Made | None:
        """Return the answer; None: the process ended with the request."""
        process = self._process
        if process is None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "dynamo.worker.engines.constraints.process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            if self._unwanted:
                process.kill()
        if (body := _exchange(process, data)) is None:
            self.close()
            return None
        _, made = msgspec.msgpack.decode(body, type=tuple[bool, dict[str, Any] | str])
        return made

    def kill(self) -> None:
        self._unwanted = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Let go of what a killed process leaves."""
        if (process := self._process) is not None:
            for end in (process.stdin, process.stdout):
                assert end is not None
                with contextlib.suppress(OSError):
                    end.close()
            process.wait()

    def why(self) -> str:
        """Return why the process ended with a request."""
        code = self._process.returncode if self._process is not None else None
        log.warning("a constraint ended the process that compiled it (exit %s); it is refused", code)
        if code == -signal.SIGPROF:
            return f"guided decoding: it takes more than {COMPILE_SECONDS} s to compile; make it simpler"
        return "guided decoding: its compiler doesn't survive it; make it simpler, or less deep"


def _exchange(process: subprocess.Popen[bytes], data: bytes) -> bytes | None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(LENGTH.pack(len(data)) + data)
        process.stdin.flush()
        head = process.stdout.read(LENGTH.size)
        body = process.stdout.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""
    except OSError:
        return None
    return body or None


def engine_form(made: Made) -> dict[str, Any]:
    """Return what the engine is given; raises what is wrong."""
    if isinstance(made, str):
        raise InvalidArgument(made)
    return made


class Constrained:
    """`submit` of an engine, for requests whose constraint is compiled first."""

    def __init__(self, pool: ConstraintPool, submit: Submit, asked: Asked | None = None) -> None:
        self._pool, self._submit, self._asked = pool, submit, asked
        self._tasks: dict[asyncio.Task[None], Sink] = {}
        self._closed = False

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        wanted = request.sampling_options.guided_decoding
        if not wanted:
            return self._submit(request, sink)
        if self._asked is not None:
            wanted = self._asked(request, wanted)
        data, digest, made = self._pool.remembered(wanted)
        if made is not None:
            return self._submit(_with(request, engine_form(made)), sink)
        if self._closed:
            raise EngineShutdown
        return self._later(request, sink, data, digest)

    def _later(self, request: PreprocessedRequest, sink: Sink, data: bytes, digest: bytes) -> Abort:
        aborts: list[Abort] = []

        async def go() -> None:
            try:
                made = await self._pool.compile(data, digest)
                aborts.append(self._submit(_with(request, made), sink))
            except Exception as error:  # whatever it is, it is this request's answer
                if not isinstance(error, DynamoException):
                    log.warning("a constraint could not be compiled", exc_info=True)
                sink.fail(error)

        task = asyncio.get_running_loop().create_task(go(), name="constraint")
        self._tasks[task] = sink
        task.add_done_callback(lambda _: self._tasks.pop(task, None))

        def abort() -> None:
            if aborts:
                aborts[0]()
            elif task in self._tasks:
                del self._tasks[task]
                task.cancel()

        return abort

    async def stop(self) -> None:
        """Fail what waits, and end the processes."""
        self._closed = True
        for task, sink in tuple(self._tasks.items()):
            if not task.done():
                task.cancel()
                sink.fail(EngineShutdown())
        await self._pool.stop()


def _with(request: PreprocessedRequest, made: dict[str, Any]) -> PreprocessedRequest:
    options = msgspec.structs.replace(request.sampling_options, guided_decoding=made)
    return msgspec.structs.replace(request, sampling_options=options)
