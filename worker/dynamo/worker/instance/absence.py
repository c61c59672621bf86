"""An engine that is away for a while: its instance leaves routing, is shown `notready`, and comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from dynamo.runtime.endpoint import Served
from dynamo.worker.engine import Absent

log = logging.getLogger(__name__)
_OWNER: Final = "engine"
"""Who has the endpoint leave."""


class Absence:
    """Have an endpoint leave and rejoin as its engine says; the last word counts."""

    def __init__(self, engine: Absent, served: Served) -> None:
        self._served, self._why, self._shown = served, "", ""
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follow the engine's absence")
        engine.on_away(self._tell)

    async def stop(self) -> None:
        """Follow no more; routing stays as it is."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def _tell(self, why: str) -> None:
        self._why = why
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            why = self._why
            if why == self._shown:
                continue
            self._shown = why
            if why:
                log.warning("%s; this worker gets no requests until that changes", why)
                await self._served.leave(why, by=_OWNER)
            else:
                log.warning("the engine can be asked again")
                await self._served.rejoin(by=_OWNER)
