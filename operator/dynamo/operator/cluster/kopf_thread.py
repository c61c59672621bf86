"""Runs kopf in a thread and an event loop of its own: `run_kopf(registry, settings, namespaces)`.

kopf takes every task that was made in its loop for one of its own, and cancels it when it
ends; in the main thread it takes the process's signals. Among our tasks it cancelled reconciles,
probes and whoever waited for it. In its own loop it can only end itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import kopf
import uvloop

from dynamo.operator.kube.resources import Key

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long kopf may take to end when asked; then its tasks are cancelled, and it has as long again."""

# kopf would ask for the user's name, and images have a user without one (platforms choose any number).
_IDENTITY: Any = "dynamo-operator"
DEEPEST: Final = 50_000
"""Calls within each other. The API server lets 10,000 mappings within each other pass, and kopf reads every pipeline by
recursion: at Python's own limit of 1,000, one pipeline would end the watch of all."""
STACK_BYTES: Final = 256 << 20
"""Of kopf's thread, for as many calls in C; only what is used of it takes memory."""
MAIN_STACK_BYTES: Final = 64 << 20
"""Of the main thread: the limit holds for all threads, and 8 MB hold fewer lists within each other than it allows."""

Mark = Callable[[Key, bool], None]


async def run_kopf(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: tuple[str, ...],
    enough: asyncio.Event,
) -> None:
    """Run kopf until cancelled, until `enough` is set or until kopf ends; raises what ended it."""
    run, limit = _KopfRun(asyncio.get_running_loop()), sys.getrecursionlimit()
    _start(partial(run.main, registry, settings, namespaces))
    waiting = asyncio.create_task(enough.wait())
    try:
        first: tuple[asyncio.Future[Any], ...] = (run.ended, waiting)
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if run.ended.done():
            run.ended.result()
    finally:
        waiting.cancel()
        if not run.ended.done():
            await run.stop()
        if run.ended.done():
            sys.setrecursionlimit(limit)


def _start(what: Callable[[], None]) -> None:
    """Start a thread whose stack is as large as `DEEPEST` asks for."""
    _let_the_main_stack_grow()
    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=what, name="kopf", daemon=True).start()
    finally:
        threading.stack_size(before)


def _let_the_main_stack_grow() -> None:
    """Raise the soft limit of the main thread's stack, which Linux reads whenever it grows; as far as one may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = MAIN_STACK_BYTES if hard == resource.RLIM_INFINITY else min(MAIN_STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


class Relay:
    """Carries marks from kopf's thread to the loop that it was made in; a pipeline waits there only once."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._home = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[Key, bool] = {}

    def __call__(self, key: Key, urgent: bool) -> None:
        """Mark a pipeline, from any thread."""
        with self._lock:
            alone = not self._waiting
            self._waiting[key] = self._waiting.get(key, False) or urgent
        if alone:
            _call(self._home, self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            marks, self._waiting = self._waiting, {}
        for key, urgent in marks.items():
            self._mark(key, urgent)


class _KopfRun:
    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home, self._loop = home, uvloop.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = home.create_future()

    def main(self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, where: tuple[str, ...]) -> None:
        """Run the thread's body. `ended` is set before the loop is tidied up, which may wait for a name server."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run(registry, settings, where))

    async def stop(self) -> None:
        """Asks, then insists; what then still runs is left alone, since it holds nothing that the process needs."""
        for _ in range(2):
            _call(self._loop, self._cancel)
            await asyncio.wait([self.ended], timeout=STOP_SECONDS)
            if self.ended.done():
                self.ended.exception()
                return
        log.error("kopf has not stopped within %.0f s; abandoning its thread", 2 * STOP_SECONDS)

    async def _run(
        self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, where: tuple[str, ...]
    ) -> None:
        error: BaseException | None = None
        self._task = asyncio.current_task()
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                identity=_IDENTITY,
                standalone=True,
                clusterwide=not where,
                namespaces=where,
            )
        except asyncio.CancelledError:
            pass
        except BaseException as failure:
            error = failure
        _call(self._home, lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    """Call in the loop's thread; do nothing where the loop has been closed, since then nobody waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)
