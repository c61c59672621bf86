"""One life of kopf: `live(registry, settings, namespaces)`, in a thread and an event loop of its own.

kopf takes every task that was made in its loop for one of its own, and cancels it when it
ends; in the main thread it takes the process's signals. Among our tasks it cancelled looks,
probes and whoever waited for it. In its own loop it can only end itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import kopf
import uvloop

from dynamo.operator.dirty import Key

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long kopf may take to end when asked; then its tasks are cancelled, and it has as long again."""

# kopf would ask for the user's name, and images have a user without one (platforms choose any number).
_IDENTITY: Any = "dynamo-operator"

Mark = Callable[[Key, bool], None]


async def live(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: tuple[str, ...],
    enough: asyncio.Event,
) -> None:
    """Until cancelled, until `enough` is set or until kopf ends; raises what ended it."""
    life = _Life(asyncio.get_running_loop())
    threading.Thread(target=life.main, args=(registry, settings, namespaces), name="kopf", daemon=True).start()
    waiting = asyncio.create_task(enough.wait())
    try:
        first: tuple[asyncio.Future[Any], ...] = (life.ended, waiting)
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if life.ended.done():
            life.ended.result()
    finally:
        waiting.cancel()
        if not life.ended.done():
            await life.stop()


class Relay:
    """Carries marks from kopf's thread to the loop that it was made in; a pipeline waits there only once."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._home = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[Key, bool] = {}

    def __call__(self, key: Key, urgent: bool) -> None:
        """From any thread."""
        with self._lock:
            alone = not self._waiting
            self._waiting[key] = self._waiting.get(key, False) or urgent
        if alone:
            _call(self._home, self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            found, self._waiting = self._waiting, {}
        for key, urgent in found.items():
            self._mark(key, urgent)


class _Life:
    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self._home, self._loop = home, uvloop.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = home.create_future()

    def main(self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, where: tuple[str, ...]) -> None:
        """The thread's body. `ended` is told before the loop is tidied up, which may wait for a name server."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._told(registry, settings, where))

    async def stop(self) -> None:
        """Asks, then insists; what then still runs is left alone, since it holds nothing that the process needs."""
        for _ in range(2):
            _call(self._loop, self._cancel)
            await asyncio.wait([self.ended], timeout=STOP_SECONDS)
            if self.ended.done():
                self.ended.exception()
                return
        log.error("kopf has not ended after %.0f s; going on without it", 2 * STOP_SECONDS)

    async def _told(
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
        except BaseException as found:
            error = found
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
    """In the loop's thread; nothing where the loop has been closed, since then nobody waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(what)
