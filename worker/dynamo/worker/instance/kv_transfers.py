"""Prompts from one worker to another: a stream at an endpoint of its own of the worker that keeps them.

The stream is the transfer: it begins when the prompt is computed and ends when all of it is there. So the runtime
notices the loss of either side as that of any other stream, and a worker that leaves ends its transfers first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, Final

from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, InvalidArgument, StreamIncomplete
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.server import Incoming
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Abort, Fetched, KvHanding

log = logging.getLogger(__name__)
SUFFIX: Final = "_kv"
"""What the endpoint of the transfers is called beside that of the requests; nobody is told of it but by a hand-over."""
LEAVE_SECONDS: Final = 5.0
"""How long a worker that leaves waits for who comes for what it has computed."""


class KvTransfers:
    """Transfers of one engine's KV. `stop` ends it."""

    def __init__(self, runtime: DistributedRuntime, path: EndpointPath, engine: KvHanding) -> None:
        self._runtime, self._path, self._engine = runtime, path, engine
        self._background = TaskOwner(log)
        self._serves = False
        self._heard = {path.namespace}
        engine.hand_over(lambda: f"{path}/{runtime.id:x}", self.fetch)

    async def start(self, *, serves: bool) -> None:
        """Start before the first request. `serves`: prompts are kept here."""
        await self._runtime.caller.listen(self._path.namespace)
        if serves:
            await self._runtime.server.serve(_transfer_path(self._path), self._asked)
            self._serves = True

    async def leave(self, grace: float) -> None:
        """Wait until what is kept has been taken: a decode worker may be on its way here."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(grace, LEAVE_SECONDS))):
                await self._engine.all_taken()

    async def stop(self) -> None:
        """Stop: nobody comes any more, and who waits for a prompt from elsewhere waits in vain."""
        self._background.cancel()
        await self._background.ended()
        if self._serves:
            await self._runtime.server.drain(_transfer_path(self._path))

    def fetch(self, address: str, name: str, fetched: Fetched) -> Abort:
        """Come for a prompt; raises `InvalidArgument` where the address is none, `StreamIncomplete` where nobody could
        answer yet."""
        path, _, number = address.partition("/")
        try:
            key = InstanceKey(_transfer_path(EndpointPath.parse(path)), int(number, 16))
        except ValueError as error:
            raise InvalidArgument(f"{address!r} is no instance to fetch a prompt from") from error
        if key.path.namespace not in self._heard:
            self._background.start(self._hear(key.path.namespace), f"listen {key.path.namespace}")
            raise StreamIncomplete(f"this worker only begins to listen to namespace {key.path.namespace}")

        def on_item(data: Any, last: bool) -> None:
            if data is not None:
                fetched.begins(data)

        def on_end(error: DynamoException | None) -> None:
            if error is None:
                fetched.arrived()
            else:
                fetched.lost(error)

        return self._runtime.caller.open(key, name, context=Context(), on_item=on_item, on_end=on_end).cancel

    async def _hear(self, namespace: str) -> None:
        """Hear of another namespace: the first prompt from it can't be fetched, those after it can."""
        try:
            await self._runtime.caller.listen(namespace)
        except DynamoException as error:
            log.warning("namespace %s can't be listened to: %s", namespace, error)
        else:
            self._heard.add(namespace)

    def _asked(self, incoming: Incoming) -> None:
        if not isinstance(incoming.payload, str):
            raise InvalidArgument("a transfer needs the name of what to take")
        incoming.on_cancel(self._engine.give(incoming.payload, incoming))


def _transfer_path(path: EndpointPath) -> EndpointPath:
    return path._replace(endpoint=path.endpoint + SUFFIX)
