"""How requests leave a client: encoded, in messages that the bus takes, and no faster than their worker reads.

`Caller` hands each request over; what doesn't fit into the worker's window waits for its turn: `Pace` decides that,
`Sending` encodes and publishes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from dynamo.runtime.errors import CannotConnect, CapacityExceeded, DynamoException, InvalidArgument
from dynamo.runtime.request_plane.call import ACCEPTANCE, Call
from dynamo.runtime.request_plane.chunks import split
from dynamo.runtime.request_plane.control_client import ControlClient
from dynamo.runtime.request_plane.wire import VERSION, ControlReply, Request, encoder
from dynamo.runtime.transport.bus import Bus

if TYPE_CHECKING:
    from dynamo.runtime.request_plane.inbox import Inbox

_log = logging.getLogger(__name__)

RESEND: Final = 0.25
HOLD: Final = 30.0
"""Seconds that a request without a deadline waits for a bus that is away."""
BYTES_PER_TURN: Final = 1024 * 1024
"""Of requests that wait, encoded and sent in one turn of the loop."""
BYTES_PER_SECOND: Final = 8 * 1024 * 1024
"""Large requests get that much longer to be accepted."""

WINDOW: Final = 8 * 1024 * 1024
"""Bytes under way to one worker. Eight such clients fill what NATS keeps for one that doesn't read (64 MiB)."""
SMALL: Final = 64 * 1024
"""Requests up to that size may go beyond the window, as far as `EXTRA`."""
EXTRA: Final = 1024 * 1024
ASK_AGAIN: Final = 1.0
"""Seconds after which a ping without an answer is sent again."""

T = TypeVar("T")
OnPong = Callable[["Inbox", float, ControlReply | DynamoException], None]


class Pace(Generic[T]):
    """Pace of one worker: what is under way to it, and who waits. Pure.

    The server of the bus keeps what a worker hasn't read yet, and cuts off one for whom it would have to keep too much:
    all its streams end, whoever's they are. So what is published counts as under way until the worker has answered a
    ping that was sent behind it, which works with workers of every version. Who waits, waits by turns: one flow (a
    request with all its choices) after the other, and small requests don't wait behind large ones.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._out = 0
        self._behind: int | None = None
        """Bytes that were under way when a ping was sent; None: none is."""
        self._asked = 0.0
        self._flows: OrderedDict[str, deque[T]] = OrderedDict()
        self._begun: T | None = None

    @property
    def waiting(self) -> bool:
        """Tell whether somebody waits."""
        return bool(self._flows) or self._begun is not None

    def waits(self, flow: str) -> bool:
        """Tell whether somebody of that flow waits."""
        return flow in self._flows

    def fits(self, size: int) -> bool:
        """Tell whether a request of `size` bytes may be sent at once, before those who wait."""
        if size <= SMALL:
            return self._out + size <= self._window + EXTRA
        return not self.waiting and self._out + size <= self._window

    def sent(self, size: int) -> None:
        """Note that so much was published."""
        self._out += size

    def wait(self, flow: str, item: T) -> None:
        self._flows.setdefault(flow, deque()).append(item)

    def next(self) -> T | None:
        """Return who may send a message now; call `more` where it has another one.

        None: nobody, or there is no room.
        """
        if self._out >= self._window:
            return None
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        if not self._flows:
            return None
        flow, items = self._flows.popitem(last=False)
        item = items.popleft()
        if items:
            self._flows[flow] = items  # at the end: the others come first
        return item

    def more(self, item: T) -> None:
        """Go on with its next message: workers keep few requests that are half there."""
        self._begun = item

    def asks(self, now: float) -> bool:
        """Tell whether to send a ping now, and call `asked`."""
        if self._behind is not None:
            return now - self._asked >= ASK_AGAIN
        return self._out >= self._window // 2

    def asked(self, now: float) -> None:
        if self._behind is None:
            self._behind = self._out
        self._asked = now

    def answered(self) -> None:
        """Note that the worker has read what was published before the ping."""
        if self._behind is not None:
            self._out -= self._behind
            self._behind = None

    def reset(self) -> None:
        """Reset it: nothing is under way, since the bus was away, or the worker is gone."""
        self._out, self._behind = 0, None


class Sending:
    """Sender of one client's messages to instances, over one bus."""

    def __init__(
        self, bus: Bus, client: int, control_client: ControlClient, clock: Callable[[], float],
        fail: Callable[[Call, DynamoException], None], on_pong: OnPong, offer: Callable[[Inbox], bytes],
    ) -> None:  # fmt: skip
        """Begin; `fail` ends a call, `on_pong` hears that a worker is gone, `offer` goes with a request to it."""
        self._bus, self._client, self._control_client, self._clock = bus, client, control_client, clock
        self._fail, self._on_pong, self._offer = fail, on_pong, offer

    def send(self, call: Call, now: float) -> None:
        """Send, or leave it to `pump` where the worker has enough to read, to the caller where the bus is away."""
        pace, request = call.inbox.pace, call.request
        call.resend_at, call.sent, call.at = 0.0, False, 0
        if request is not None and pace.fits(size := len(request[0]) if len(request) == 1 else sum(map(len, request))):
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
        subject, replies = call.inbox.subjects[call.instance]
        try:
            self._bus.publish(subject, part, f"{replies}{call.stream}")
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
        """Encode a request as messages that the bus takes; raises `InvalidArgument` where it can't be one."""
        context, limit = call.context, self._bus.max_payload
        left = 0 if context.deadline is None else max(1, round((context.deadline - now) * 1000))
        try:
            raw = msgspec.Raw(encoder.encode(payload))
            offer = self._offer(call.inbox)
            request = Request(VERSION, self._client, call.stream, context.id(), left, context.metadata, raw, offer)
            data = encoder.encode(request)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"the request can't be sent: {error}") from error
        return [data] if len(data) <= limit else split(self._client, call.stream, data, limit)

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

    def look_after(self, inbox: Inbox, now: float) -> None:
        """Send again what is due, and give up what waited too long."""
        for stream in tuple(inbox.pending.values()):
            if not isinstance(stream, Call):
                continue
            if stream.resend_at and now >= stream.resend_at:
                self.send(stream, now)
            elif stream.waits_since is not None and now - stream.waits_since >= HOLD:
                inbox.end(stream, CapacityExceeded("the worker has too much to read from here"), now)
        if inbox.pending and inbox.pace.waiting and inbox.pace.asks(now):
            self.ask(inbox, now)

    def begin_anew(self, call: Call, now: float) -> None:
        """Begin anew: the bus is back, what was on its way may be lost; a worker drops what it has seen before."""
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
        """Go on: the worker has read all that was sent before the ping, or is gone."""
        if isinstance(answer, ControlReply):
            inbox.pace.answered()
            self.pump(inbox)
        elif isinstance(answer, CannotConnect):
            self._on_pong(inbox, asked, answer)
