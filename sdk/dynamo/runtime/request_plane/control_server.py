"""What an instance does when it is asked on its control subject: pings, cancels, operations.

`RequestServer.on_control` registers operations (a snapshot of the KV cache, a card's
files, ...); each question runs in a task of its own, bounded in number.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import (
    CannotConnect,
    CapacityExceeded,
    DynamoException,
    EngineError,
    InvalidArgument,
    ProtocolMismatch,
)
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.peer import Peer, Peers
from dynamo.runtime.request_plane.wire import (
    CANCEL,
    PING,
    VERSION,
    Control,
    ControlReply,
    Pong,
    decode_control,
    encoder,
)
from dynamo.runtime.transport.bus import Bus, Message

_log = logging.getLogger(__name__)

ControlHandler = Callable[[Any], "Any | Awaitable[Any]"]
MAX_AT_ONCE: Final = 64


class ControlServer:
    """The operations of all endpoints of one process."""

    def __init__(self, bus: Bus, peers: Peers, send: Callable[[Peer], None]) -> None:
        """`send` sends what a peer's outbox has."""
        self._bus, self._peers, self._send = bus, peers, send
        self._handlers: dict[tuple[EndpointPath, str], ControlHandler] = {}
        self._tasks = TaskOwner(_log)

    def add(self, path: EndpointPath, op: str, handler: ControlHandler) -> None:
        self._handlers[path, op] = handler

    def take(self, path: EndpointPath, message: Message) -> None:
        """Answer what an instance is asked; raises one of `UNREADABLE` for what is no question."""
        try:
            control = decode_control(message.data)
            if control.version != VERSION:
                raise ProtocolMismatch(f"the caller speaks version {control.version}, this worker {VERSION}")
            self._answer(path, control, message.reply)
        except DynamoException as error:
            self._reply(message.reply, ControlReply(error.code, error.message))

    def _answer(self, path: EndpointPath, control: Control, reply: str) -> None:
        peer = self._peers.get((path.namespace, control.client))
        if control.op == PING:
            self._pong(peer, reply)
        elif control.op == CANCEL:
            if peer is not None:
                peer.cancel_these(msgspec.msgpack.decode(control.body, type=list[int]))
        else:
            self._begin(path, control, reply)

    def _pong(self, peer: Peer | None, reply: str) -> None:
        if peer is None:
            pong = Pong(0, [])
        else:
            peer.missing = 0
            self._send(peer)  # a pong speaks of frames that left before it
            pong = Pong(peer.outbox.seq, list(peer.streams))
        self._reply(reply, ControlReply(body=msgspec.Raw(encoder.encode(pong))))

    def _begin(self, path: EndpointPath, control: Control, reply: str) -> None:
        """Begin to answer a question to an operation; raises where it can't be."""
        handler = self._handlers.get((path, control.op))
        if handler is None:
            raise InvalidArgument(f"this instance has no operation {control.op!r}")
        if len(self._tasks) >= MAX_AT_ONCE:
            raise CapacityExceeded("too many operations at once")
        self._tasks.start(self._run(handler, control, reply), f"operation {control.op}")

    async def _run(self, handler: ControlHandler, control: Control, reply: str) -> None:
        try:
            result = handler(msgspec.msgpack.decode(control.body))
            if isinstance(result, Awaitable):
                result = await result
            answer = ControlReply(body=msgspec.Raw(encoder.encode(result)))
        except DynamoException as error:
            answer = ControlReply(error.code, error.message)
        except Exception as error:  # an operation's failure is its caller's to hear, nobody else's
            _log.warning("operation %s failed: %s: %s", control.op, type(error).__name__, error)
            answer = ControlReply(EngineError.code, f"{type(error).__name__}: {error}")
        self._reply(reply, answer)

    def _reply(self, subject: str, answer: ControlReply) -> None:
        """Send an answer, where one is wanted; one over the bus's limit becomes an error that says so."""
        if not subject:
            return
        data = encoder.encode(answer)
        if len(data) > self._bus.max_payload:
            text = f"the answer of {len(data)} bytes is over the bus's limit of {self._bus.max_payload}"
            data = encoder.encode(ControlReply(InvalidArgument.code, text))
        try:
            self._bus.publish(subject, data)
        except CannotConnect:
            _log.debug("an answer could not be sent")

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()
