"""Questions to an instance's control subject, and their answers.

`Caller` uses it for pings and for the operations that instances register; each
question has a reply subject of its own under the client's inbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import CannotConnect, ConnectionTimeout, DynamoException, EngineError, from_code
from dynamo.runtime.names import InstanceKey, control_subject, reply_subject
from dynamo.runtime.request_plane.wire import (
    CANCEL,
    PING,
    UNREADABLE,
    VERSION,
    Control,
    ControlReply,
    decode_control_reply,
    encoder,
)
from dynamo.runtime.transport.bus import Bus, Message

_log = logging.getLogger(__name__)

MAX_PINGS: Final = 1024
OnReply = Callable[["ControlReply | DynamoException"], None]


class ControlClient:
    """Client's requests for control that were not answered yet."""

    def __init__(self, bus: Bus, client: int) -> None:
        self._bus = bus
        self._client = client
        self._last = 0
        self._waiting: dict[str, OnReply] = {}
        self._pings: deque[str] = deque()
        self._cancelling: dict[InstanceKey, list[int]] = {}
        self._over: str | None = None

    def check(self) -> None:
        """Raise what it gave up with: a question that is asked afterwards would wait for ever."""
        if self._over is not None:
            raise CannotConnect(self._over)

    def ask(self, instance: InstanceKey, op: str, body: Any, on_reply: OnReply) -> str:
        """Send one question; returns the token under which `forget` ends the waiting."""
        self.check()
        self._last += 1
        token = f"c{self._last}"
        data = encoder.encode(Control(VERSION, self._client, op, msgspec.Raw(encoder.encode(body))))
        reply = reply_subject(instance.path.namespace, self._client, token)
        self._bus.publish(control_subject(instance), data, reply)
        self._waiting[token] = on_reply
        return token

    def ping(self, instance: InstanceKey, on_reply: OnReply) -> None:
        """Ask whether it lives; a late answer counts too, so only the oldest of very many are given up."""
        self._pings.append(self.ask(instance, PING, None, on_reply))
        if len(self._pings) > MAX_PINGS:
            self.forget(self._pings.popleft())

    def cancel(self, instance: InstanceKey, streams: list[int]) -> None:
        """Have streams cancelled; all of one turn of the loop leave together, one message per worker."""
        if not self._cancelling:
            asyncio.get_running_loop().call_soon(self.send_cancels)
        self._cancelling.setdefault(instance, []).extend(streams)

    def send_cancels(self) -> None:
        """Send now what is to be cancelled."""
        cancelling, self._cancelling = self._cancelling, {}
        for instance, streams in cancelling.items():
            data = encoder.encode(Control(VERSION, self._client, CANCEL, msgspec.Raw(encoder.encode(streams))))
            try:
                self._bus.publish(control_subject(instance), data)
            except CannotConnect:
                # Repeated when an item of such a stream arrives.
                _log.debug("%d cancels could not be sent", len(streams))

    async def answer(self, instance: InstanceKey, op: str, body: Any, timeout: float) -> Any:
        """Ask and wait; raises what went wrong."""
        arrived: asyncio.Future[ControlReply | DynamoException] = asyncio.get_running_loop().create_future()
        token = self.ask(instance, op, body, lambda result: None if arrived.done() else arrived.set_result(result))
        try:
            async with asyncio.timeout(timeout):  # `wait_for` of Python 3.11 can lose its caller's cancellation
                result = await arrived
        except TimeoutError:
            raise ConnectionTimeout(f"no answer to {op!r} within {timeout:g} s") from None
        finally:
            self.forget(token)
        if isinstance(result, DynamoException):
            raise result
        if result.code:
            raise from_code(result.code, result.message)
        return msgspec.msgpack.decode(result.body)

    def forget(self, token: str) -> None:
        self._waiting.pop(token, None)

    def on_reply(self, token: str, message: Message) -> None:
        """Take an answer that came, or the bus's word that nobody listens."""
        on_reply = self._waiting.pop(token, None)
        if on_reply is None:
            return
        if message.no_responders:
            on_reply(CannotConnect("the instance is gone"))
            return
        try:
            on_reply(decode_control_reply(message.data))
        except UNREADABLE as error:
            on_reply(EngineError(f"the instance's answer can't be read: {error}"))

    def give_up(self, error: DynamoException) -> None:
        """Give up: nobody will answer any more."""
        self._over = error.message
        waiting, self._waiting = self._waiting, {}
        for on_reply in waiting.values():
            on_reply(error)
