"""Responses that run in the background: their clients have an id, and may leave.

A run counts against every bound of requests until it is over, and against its owner's room in the store. `Background`
is one of the servers that a frontend which leaves waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, over_quota
from dynamo.frontend.stored.event_log import EventLog
from dynamo.frontend.stored.store import StoredResponses
from dynamo.runtime.process.tasks import TaskOwner

log = logging.getLogger(__name__)
MOST_OF_ONE: Final = 256
"""Runs of one owner in one process."""
_LEAVE_SECONDS: Final = 2.0
"""In which a run that is told to end does."""


class BackgroundRun:
    """One response under way. `response` is what its writer has said so far."""

    def __init__(
        self, owner: bytes, response: dict[str, Any], given: bytes, events: EventLog | None, stop: Callable[[], None]
    ) -> None:
        self.id: str = response["id"]
        self.owner, self.response, self.input, self.log, self._stop = owner, response, given, events, stop
        self.cancelled = False
        self.over = asyncio.Event()

    def said(self) -> bytes:
        """Return the response as far as it is known."""
        return msgspec.json.encode(self.response)

    def stop(self) -> None:
        """Ask it to end; `over` says when it has."""
        self.cancelled = True
        self._stop()


class Background:
    """All runs of this process."""

    def __init__(self, store: StoredResponses) -> None:
        self._store = store
        self._runs: dict[str, BackgroundRun] = {}
        self._of: dict[bytes, int] = {}
        self._tasks = TaskOwner(log)
        self._asked = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def asked(self) -> float:
        """Return when the last run began."""
        return self._asked

    @property
    def running(self) -> int:
        """Count the runs."""
        return len(self._runs)

    def check(self, owner: bytes) -> None:
        """Raise 429 where this owner has as many as one may have."""
        if self._of.get(owner, 0) >= MOST_OF_ONE:
            raise over_quota(MOST_OF_ONE)

    def start(self, run: BackgroundRun, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of a run, whoever waits for it."""
        self._asked = time.monotonic()
        self._idle.clear()
        self._runs[run.id] = run
        self._of[run.owner] = self._of.get(run.owner, 0) + 1
        self._tasks.start(self._run(run, work), f"background {run.id}")

    async def _run(self, run: BackgroundRun, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            del self._runs[run.id]
            if (left := self._of.pop(run.owner) - 1) > 0:
                self._of[run.owner] = left
            if run.log is not None:
                run.log.end()
                self._store.release(run.owner, run.log.room)
            run.over.set()
            if not self._runs:
                self._idle.set()

    def get(self, owner: bytes, response_id: str) -> BackgroundRun | None:
        """Return a run of this owner; None where it has none of that id."""
        run = self._runs.get(response_id)
        return run if run is not None and run.owner == owner else None

    async def cancel(self, run: BackgroundRun) -> None:
        """End a run, and wait a moment until it has."""
        run.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                await run.over.wait()

    def log_of(self, owner: bytes) -> EventLog:
        """Return a log for a stream, whose bytes count as its owner's."""
        return EventLog(lambda size: self._store.reserve(owner, size))

    async def stop(self, grace: float, give_up: Callable[[], None]) -> bool:
        """Let runs end within `grace`; True where all did."""
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            give_up()
            await self._tasks.ended(_LEAVE_SECONDS)
            return False
        return True

    async def close(self) -> None:
        """End what is left."""
        self._tasks.cancel()
        await self._tasks.ended()


def not_in_background(response_id: str) -> ApiError:
    """Return 400: only what runs in the background can be cancelled."""
    text = (
        f"Only responses in the background can be cancelled; close the connection of {response_id[:100]!r} to end it."
    )
    return ApiError(400, text, code="unsupported_value", param="response_id")
