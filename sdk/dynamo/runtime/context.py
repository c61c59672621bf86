"""The life of one request, as everybody who works on it sees it: who it is, until when, and whether it should stop.

A frontend makes one per request, `Caller` carries it over the bus, `RequestServer`
rebuilds it beside the engine. It works push-style (`on_stop` calls back at once, for
code that must not own a task) and pull-style (`is_stopped`, `async_killed_or_stopped`,
the original's names). Used from the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)


class Context:
    """One request's identity, time limit and stop signal."""

    __slots__ = ("_callbacks", "_id", "_killed", "_stopped", "deadline", "metadata")

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the original's keyword
        metadata: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
    ) -> None:
        self._id = id or str(uuid.uuid4())
        self.metadata: dict[str, str] = dict(metadata) if metadata else {}
        self.deadline = deadline
        """When it must be over, on the clock of `time.monotonic`; None: no limit."""
        self._stopped = False
        self._killed = False
        self._callbacks: list[Callable[[], None]] = []

    def id(self) -> str:
        return self._id

    def is_stopped(self) -> bool:
        """True once somebody asked to end the request, gently or not."""
        return self._stopped

    def is_killed(self) -> bool:
        """True once the output is wanted by nobody."""
        return self._killed

    def stop_generating(self) -> None:
        """Ask to end; what was produced so far still counts."""
        if not self._stopped:
            self._stopped = True
            self._run_callbacks()

    def kill(self) -> None:
        """End now; nobody reads what is still produced."""
        self._killed = True
        self.stop_generating()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the request is stopped or killed; at once where it already is."""
        if self._stopped:
            callback()
        else:
            self._callbacks.append(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `on_stop`; unknown callbacks are ignored."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def settle(self) -> None:
        """The request is over: nobody waits for a stop any more (also frees what the callbacks hold)."""
        self._callbacks.clear()

    async def async_killed_or_stopped(self) -> bool:
        """Return True when the request is stopped or killed."""
        if self._stopped:
            return True
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not waiting.done():
                waiting.set_result(None)

        self.on_stop(wake)
        try:
            await waiting
        finally:
            self.forget(wake)
        return True

    def child(self, id: str | None = None) -> Context:  # noqa: A002
        """A context that stops with this one; it has the same time limit and a copy of the metadata."""
        child = Context(id or self._id, self.metadata, deadline=self.deadline)
        self.on_stop(lambda: child.kill() if self._killed else child.stop_generating())
        return child

    def detached(self, id: str | None = None) -> Context:  # noqa: A002
        """A copy that outlives this one."""
        return Context(id or self._id, self.metadata, deadline=self.deadline)

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the others must hear of it too
                _log.exception("request %s: a stop callback failed", self._id)
