"""Adapters (LoRA) of an engine's model, each served as a model of its own at an endpoint of its own.

A record has one card, so what has a name of its own needs an endpoint. Endpoints come and go as the engine says; while
its server is away it names none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from dynamo.runtime.endpoint import Served
from dynamo.runtime.names import EndpointPath
from dynamo.worker.engine import Adapting

log = logging.getLogger(__name__)
MOST: Final = 64
"""Adapters that are served; more are named in the log, and passed over."""
_AGAIN_SECONDS: Final = 5.0
_MOST_SLUG: Final = 40


def adapter_path(path: EndpointPath, adapter: str) -> EndpointPath:
    """Return the endpoint of an adapter: a name's letters, and a digest of all of it."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", adapter).strip("-")[:_MOST_SLUG]
    digest = hashlib.blake2b(adapter.encode(), digest_size=4).hexdigest()
    return path._replace(endpoint=f"{path.endpoint}-lora-{slug}-{digest}")


class AdapterEndpoints:
    """Keep one endpoint for each adapter that the engine names; `start` serves one."""

    def __init__(self, engine: Adapting, start: Callable[[str], Awaitable[Served]]) -> None:
        self._start = start
        self._wanted: list[str] = []
        self._served: dict[str, Served] = {}
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="serve the adapters")
        engine.on_adapters(self._tell)

    async def stop(self, grace: float) -> None:
        """Follow no more, and withdraw all of them; streams have `grace` seconds."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await asyncio.gather(*(served.drain(grace) for served in self._served.values()))
        for name in list(self._served):
            await self._served.pop(name).stop()

    def _tell(self, names: Sequence[str]) -> None:
        if len(names) > MOST:
            log.warning("the engine has %d adapters, and the first %d are served", len(names), MOST)
        self._wanted = list(names[:MOST])
        self._changed.set()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._follow()
            except Exception as error:  # the store may be away: a task that ends would leave them as they are
                log.warning("adapters: %s %s; trying again", type(error).__name__, error)
                await asyncio.sleep(_AGAIN_SECONDS)
                self._changed.set()

    async def _follow(self) -> None:
        for name in self._served.keys() - set(self._wanted):
            await self._served.pop(name).stop()
            log.info("adapter %r is gone", name)
        for name in self._wanted:
            if name not in self._served:
                self._served[name] = await self._start(name)
                log.info("adapter %r is served", name)
