"""Says between workers which handed-over prompts were taken: a control operation of the one that keeps them.

Nothing else goes this way: what a hand-over says travels with the request, and one that nobody takes ends by itself.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from dynamo.runtime.background import Background
from dynamo.runtime.errors import DynamoException, InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import KvHanding

log = logging.getLogger(__name__)
OPERATION: Final = "kv_taken"
"""The control operation's name: body, the handle; answer, nothing."""
SECONDS: Final = 5.0
MOST_AT_ONCE: Final = 1024
"""Messages on their way; with more, what they would say is left to the keepers' deadlines."""


class KvTransfers:
    """Of one engine. `stop` ends it."""

    def __init__(self, runtime: DistributedRuntime, path: EndpointPath, engine: KvHanding) -> None:
        self._caller, self._background, self._running = runtime.caller, Background(log), 0
        runtime.server.on_control(path, OPERATION, lambda body: _taken(engine, body))
        engine.hand_over(lambda: f"{path}/{runtime.id:x}", self.taken)

    def taken(self, address: str, handle: str) -> None:
        """Tell the instance at `address` that it need not keep that one any longer."""
        if self._running < MOST_AT_ONCE:
            self._running += 1
            self._background.start(self._tell(address, handle), f"tell {address}")

    async def stop(self) -> None:
        """Tell nobody any more."""
        self._background.cancel()
        await self._background.ended()

    async def _tell(self, address: str, handle: str) -> None:
        try:
            path, _, number = address.partition("/")
            key = InstanceKey(EndpointPath.parse(path), int(number, 16))
            await self._caller.control(key, OPERATION, handle, timeout=SECONDS)
        except (DynamoException, ValueError) as error:
            log.debug("%s was not told that %s is taken: %s", address, handle, error)
        finally:
            self._running -= 1


def _taken(engine: KvHanding, body: Any) -> None:
    if not isinstance(body, str):
        raise InvalidArgument(f"the operation {OPERATION!r} needs a handle")
    engine.taken(body)
