"""How requests leave a client: encoded, in messages that the bus takes, and no faster than their worker reads.

`Caller` hands each request over; what doesn't fit into the worker's window waits for its turn (`send_window.py`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Final

from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument
from dynamo.runtime.names import reply_subject, request_subject
from dynamo.runtime.request_plane.call import Call, encode_request
from dynamo.runtime.request_plane.control_client import ControlClient
from dynamo.runtime.request_plane.inbox import ACCEPTANCE, Inbox
from dynamo.runtime.request_plane.send_window import WINDOW
from dynamo.runtime.request_plane.wire import ControlReply
from dynamo.runtime.transport.bus import Bus

_log = logging.getLogger(__name__)

RESEND: Final = 0.25
BYTES_PER_TURN: Final = 1024 * 1024
"""Of requests that wait, encoded and sent in one turn of the loop."""
BYTES_PER_SECOND: Final = 8 * 1024 * 1024
"""Large requests get that much longer to be accepted."""

OnPong = Callable[[Inbox, float, ControlReply | DynamoException], None]


class Sending:
    """Sender of one client's messages to instances, over one bus."""

    def __init__(
        self, bus: Bus, client: int, control_client: ControlClient, clock: Callable[[], float],
        fail: Callable[[Call, DynamoException], None], on_pong: OnPong,
    ) -> None:  # fmt: skip
        """`fail` ends a call, `on_pong` hears that a worker is gone."""
        self._bus, self._client, self._control_client, self._clock = bus, client, control_client, clock
        self._fail, self._on_pong = fail, on_pong

    def send(self, call: Call, now: float) -> None:
        """Send, or leave it to `pump` where the worker has enough to read, to the caller where the bus is away."""
        pace, request = call.inbox.pace, call.request
        call.resend_at, call.sent, call.at = 0.0, False, 0
        if request is not None and pace.fits(size := sum(map(len, request))):
            call.limit = ACCEPTANCE + (size + WINDOW * pace.waiting) / BYTES_PER_SECOND
            while call.request is not None and call.at < len(request) and not call.resend_at:
                self._send_part(call, now)
            if pace.asks(now):
                self.ask(call.inbox, now)
        elif call.waits_since is None and (request is not None or call.payload is not None):
            call.waits_since, call.since = now, math.inf
            pace.wait(call.context.id(), call)
            self.pump(call.inbox)

    def _send_part(self, call: Call, now: float) -> None:
        """Publish the next message of a request."""
        assert call.request is not None
        part = call.request[call.at]
        reply = reply_subject(call.instance.path.namespace, self._client, call.stream)
        try:
            self._bus.publish(request_subject(call.instance), part, reply)
        except CannotConnect:
            call.resend_at, call.since = now + RESEND, now
            return
        except InvalidArgument as error:  # the bus came back with a smaller limit
            call.at = len(call.request)
            asyncio.get_running_loop().call_soon(self._fail, call, error)
            return
        call.inbox.pace.sent(len(part))
        call.at += 1
        if call.at == len(call.request):
            call.sent, call.since = True, now

    def pump(self, inbox: Inbox) -> None:
        """Send of what waits as much as may be under way; a part of it per turn of the loop."""
        pace, now, done = inbox.pace, self._clock(), 0
        while done < BYTES_PER_TURN and (call := pace.next()) is not None:
            if not call.open or not self._ready(call, now):
                continue
            assert call.request is not None
            done += len(call.request[call.at])
            self._send_part(call, now)
            if call.resend_at or call.at >= len(call.request):
                call.waits_since = None
            else:
                pace.more(call)
        if pace.asks(now):
            self.ask(inbox, now)
        if done >= BYTES_PER_TURN and pace.waiting:
            asyncio.get_running_loop().call_soon(self.pump, inbox)

    def encoded(self, call: Call, payload: Any, now: float) -> list[bytes]:
        """A request as messages; raises `InvalidArgument` where it can't be one."""
        return encode_request(self._client, call.stream, payload, call.context, now, self._bus.max_payload)

    def _ready(self, call: Call, now: float) -> bool:
        """Encode a request whose turn has come; False where that fails, and so the call."""
        if call.request is None:
            assert call.payload is not None
            try:
                call.request = self.encoded(call, call.payload[0], now)
            except InvalidArgument as error:
                asyncio.get_running_loop().call_soon(self._fail, call, error)
                return False
            call.payload = None
        call.limit = ACCEPTANCE + (sum(map(len, call.request)) + WINDOW) / BYTES_PER_SECOND
        return True

    def begin_anew(self, call: Call, now: float) -> None:
        """The bus is back: what was on its way may be lost; a worker drops what it has seen before."""
        call.at = 0
        if call.waits_since is None:
            self.send(call, now)

    def ask(self, inbox: Inbox, now: float) -> None:
        """Have the worker say that it has read what was sent."""
        inbox.pace.asked(now)
        try:
            self._control_client.ping(inbox.key, functools.partial(self._on_pace, inbox, now))
        except CannotConnect:
            _log.debug("a ping could not be sent")

    def _on_pace(self, inbox: Inbox, asked: float, answer: ControlReply | DynamoException) -> None:
        """The worker has read all that was sent before the ping, or is gone."""
        if isinstance(answer, ControlReply):
            inbox.pace.answered()
            self.pump(inbox)
        elif isinstance(answer, CannotConnect):
            self._on_pong(inbox, asked, answer)
