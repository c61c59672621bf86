"""The worker side of requests: takes them from the bus, hands them to a handler, sends what it produces.

One `RequestServer` per process serves all its endpoints. Handlers push: `send` only appends, and all that one turn of
the loop (one engine step) produced leaves as one message per client. The protocol's decisions are in `peer` and
`chunks`; this is the shell around them: subscriptions, timers, the streams' life.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.runtime.context import Context
from dynamo.runtime.errors import (
    CannotConnect,
    CapacityExceeded,
    DynamoException,
    EngineShutdown,
    InvalidArgument,
    ProtocolMismatch,
    WorkerUnavailable,
)
from dynamo.runtime.names import EndpointPath, InstanceKey, control_subject, gone_subject, request_subject
from dynamo.runtime.request_plane.control_server import ControlHandler, ControlServer
from dynamo.runtime.request_plane.direct_frames import DirectSender
from dynamo.runtime.request_plane.generator_handler import from_generator
from dynamo.runtime.request_plane.peer import TICK, Incoming, Peer, Peers
from dynamo.runtime.request_plane.served_endpoint import Handler, ServedEndpoint, Typed
from dynamo.runtime.request_plane.wire import (
    HEARTBEAT,
    UNREADABLE,
    VERSION,
    Chunk,
    Rejection,
    Request,
    decode_call,
    encoder,
    version_of,
)
from dynamo.runtime.transport.bus import Bus, Message, Subscription

__all__ = ["ControlHandler", "Handler", "Incoming", "RequestServer", "Typed", "from_generator"]

_log = logging.getLogger(__name__)

ACCEPT_WITHIN: Final = 0.01
"""Seconds that an acceptance waits for a step's frame to ride in."""
MAX_STREAMS: Final = 8192
MOST_ID: Final = 1024
"""Characters of a request's id."""
PROBE: Final = 1.0
"""Seconds between two looks whether a client still listens."""
GRACE: Final = 5.0
"""Seconds after a reconnect in which nobody's silence means that it is gone."""
GONE_AFTER: Final = 3
"""How often in a row nobody must listen to a client before its streams end."""


class RequestServer:
    """Server of all endpoints of one process over one bus."""

    def __init__(
        self,
        bus: Bus,
        worker_id: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_streams: int = MAX_STREAMS,
        direct: bool = False,
    ) -> None:
        """Begin; `direct`: frames go to clients beside the bus where they and this process can reach each other."""
        self._bus = bus
        self.worker_id = worker_id
        self._clock = clock
        self._max_streams = max_streams
        self._served: dict[EndpointPath, ServedEndpoint] = {}
        self._peers = Peers()
        self._direct = DirectSender(clock) if direct else None
        self._control_server = ControlServer(bus, self._peers, self._send)
        self._dirty: list[Peer] = []
        self._scheduled = False
        self._accepting: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._probe_at = 0.0
        self._grace_until = 0.0
        self._empty = asyncio.Event()
        self._complained: set[str] = set()
        self.garbage = 0
        """Messages that could not be read."""
        self.lost = 0
        """Frames that could not be sent."""
        self.active = 0
        """Streams that are open."""
        bus.on_state(self._on_state)

    # -- endpoints

    async def serve(self, path: EndpointPath, handler: Handler) -> None:
        """Begin to take requests of `path`, also again after `drain`; the bus knows when this returns."""
        served = self._served.get(path)
        if served is None:
            served = self._served[path] = ServedEndpoint(InstanceKey(path, self.worker_id), handler)
            await self._listen_beside(served)
        elif not served.draining:
            raise InvalidArgument(f"{path} is already served by this process")
        served.answer_with(handler)
        served.draining = False
        served.requests = await self._listen(served, request_subject(served.key), self._on_request)
        await self._bus.flush()

    def on_control(self, path: EndpointPath, op: str, handler: ControlHandler) -> None:
        """Answer `Caller.control(instance, op, body)`; `handler` gets the decoded body, sync or async."""
        self._control_server.add(path, op, handler)

    async def drain(self, path: EndpointPath | None = None) -> None:
        """Take nothing new (of `path`, or at all): refused retryably from now on; open streams go on."""
        for served in [s for s in self._served.values() if path in (None, s.key.path)]:
            served.draining = True
            if served.requests is not None:
                await self._unsubscribe(served.requests)
                served.requests = None

    async def finished(self, timeout: float) -> bool:
        """Wait until no stream is open; False where some still are after `timeout` seconds."""
        if not self.active:
            return True
        self._empty.clear()
        try:
            async with asyncio.timeout(timeout):  # `wait_for` of Python 3.11 can lose its caller's cancellation
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End everything now: open streams fail with `EngineShutdown` (retryable)."""
        await self.drain()
        for peer in tuple(self._peers.values()):
            for incoming in tuple(peer.streams.values()):
                incoming.abandon(EngineShutdown())
        self.flush()
        for served in self._served.values():
            for subscription in served.others:
                await self._unsubscribe(subscription)
        self._served.clear()
        for timer in (self._accepting, self._ticking):
            if timer is not None:
                timer.cancel()
        await self._control_server.stop()
        if self._direct is not None:
            await self._direct.stop()

    async def _listen_beside(self, served: ServedEndpoint) -> None:
        control = await self._listen(served, control_subject(served.key), self._on_control)
        gone = await self._listen(served, gone_subject(served.key, "*"), self._on_gone)
        served.others = [control, gone]

    async def _listen(
        self, served: ServedEndpoint, subject: str, on_message: Callable[[ServedEndpoint, Message], None]
    ) -> Subscription:
        # What was lost is the clients' to notice: they repeat, ask and time out.
        return await self._bus.subscribe(subject, functools.partial(on_message, served), lambda: None)

    @staticmethod
    async def _unsubscribe(subscription: Subscription) -> None:
        try:
            await subscription.unsubscribe()
        except CannotConnect:
            _log.debug("left while the bus was away")

    # -- requests

    def _on_request(self, served: ServedEndpoint, message: Message) -> None:
        try:
            call = decode_call(message.data)
            if type(call) is Chunk:
                whole = self._peer(served, call.client).chunks.add(call, self._clock())
                if whole is None:
                    return
                call = decode_call(whole)
            if type(call) is Request:
                self._admit(served, call)
        except UNREADABLE as error:
            self._on_garbage(message, error)
        except DynamoException as error:
            self._reject(message.reply, error)

    def _on_garbage(self, message: Message, error: Exception) -> None:
        version = version_of(message.data)
        if version not in (None, VERSION):
            text = f"the caller speaks version {version}, this worker {VERSION}"
            self._reject(message.reply, ProtocolMismatch(text))
            return
        self._complain(message.subject, error)
        self._reject(message.reply, InvalidArgument("the worker could not read the request"))

    def _complain(self, subject: str, error: Exception) -> None:
        self.garbage += 1
        if subject not in self._complained:
            self._complained.add(subject)
            _log.warning("unreadable message on %s: %s (said once)", subject, error)

    def _reject(self, reply: str, error: DynamoException) -> None:
        if reply:
            self._publish(reply, encoder.encode(Rejection(0, error.code, error.message)))

    def _admit(self, served: ServedEndpoint, request: Request) -> None:
        """Begin a stream; raises the error with which it is refused."""
        if request.version != VERSION:
            raise ProtocolMismatch(f"the caller speaks version {request.version}, this worker {VERSION}")
        if len(request.request_id) > MOST_ID:
            raise InvalidArgument(f"a request id of {len(request.request_id)} characters; {MOST_ID} are the most")
        peer = self._peer(served, request.client)
        if not peer.first_time(request.stream):
            return
        if request.offer and self._direct is not None:
            self._direct.take_up(peer, request.offer)
        if served.draining:
            raise WorkerUnavailable
        if self.active >= self._max_streams:
            raise CapacityExceeded(f"this worker has {self.active} streams open and takes no more")
        try:
            payload = served.decode(request.payload)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"the request does not fit this endpoint: {error}") from error
        except UNREADABLE as error:
            raise InvalidArgument(f"the worker could not read the request: {error}") from error
        incoming = Incoming(self, peer, request.stream, self._context(request), payload)
        self._begin(incoming, request.deadline_ms)
        try:
            served.handler(incoming)
        except Exception as error:  # whatever an engine raises belongs to this request alone
            incoming.fail(error)

    def _context(self, request: Request) -> Context:
        deadline = self._clock() + request.deadline_ms / 1000 if request.deadline_ms > 0 else None
        return Context(request.request_id, request.metadata, deadline=deadline)

    def _begin(self, incoming: Incoming, deadline_ms: int) -> None:
        loop = asyncio.get_running_loop()
        incoming.peer.begin(incoming)
        self.active += 1
        if deadline_ms > 0:
            incoming.timer = loop.call_later(deadline_ms / 1000, incoming.expire)
        if self._accepting is None:
            self._accepting = loop.call_later(ACCEPT_WITHIN, self._accept)
        if self.active == 1 and self._ticking is not None:
            self._ticking.cancel()  # it looked for clients that left, once a second
            self._ticking = None
        self._arm()

    def _accept(self) -> None:
        self._accepting = None
        for peer in self._peers.values():
            if peer.outbox.accepted:
                self._send(peer)

    def _peer(self, served: ServedEndpoint, client: int) -> Peer:
        peer = self._peers.of(served.key.path.namespace, client, self.worker_id, self._clock())
        peer.served = served.key
        peer.missing = 0
        self._arm()
        return peer

    def _arm(self) -> None:
        if self._ticking is None:
            after = TICK if self.active else PROBE
            self._ticking = asyncio.get_running_loop().call_later(after, self._tick)

    # -- what streams produce

    def mark(self, peer: Peer) -> None:
        """Mark that `peer` has something to send: at the end of this turn of the loop, or by `flush`."""
        peer.dirty = True
        self._dirty.append(peer)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def ended(self, incoming: Incoming) -> None:
        """Note that a stream is over (called by it, once)."""
        self.active -= 1
        if not self.active:
            self._empty.set()

    def flush(self) -> None:
        """Send now what streams have produced, one message per client."""
        dirty, self._dirty = self._dirty, []
        for peer in dirty:
            peer.dirty = False
            self._send(peer)

    def _flush_soon(self) -> None:
        self._scheduled = False
        self.flush()

    def _send(self, peer: Peer) -> None:
        outbox = peer.outbox
        for frame in outbox.take(self._clock(), self._bus.max_payload):
            self._put(peer, frame)
        if outbox.failed:
            failed, outbox.failed = outbox.failed, []
            for stream in failed:
                peer.cancel(stream)

    def _put(self, peer: Peer, frame: bytes) -> None:
        """Send a frame the way that there is."""
        if peer.link is None or not peer.link.send(frame):
            self._publish(peer.subject, frame)

    def _publish(self, subject: str, data: bytes, reply: str = "") -> None:
        try:
            self._bus.publish(subject, data, reply)
        except CannotConnect:
            self.lost += 1

    def _tick(self) -> None:
        """Send heartbeats, and check now and then whether the clients still listen."""
        now = self._clock()
        probe = now >= self._probe_at
        if probe:
            self._probe_at = now + PROBE
            self._peers.prune(now)
        for peer in self._peers.values():
            self._beat(peer, now, probe)
        self._ticking = None
        if self.active or len(self._peers):
            self._arm()

    def _beat(self, peer: Peer, now: float, probe: bool) -> None:
        if probe and peer.streams and peer.served is not None:
            peer.outbox.last_sent = now - HEARTBEAT
            frame = peer.outbox.heartbeat(now)
            if frame is not None:
                self._publish(peer.subject, frame, gone_subject(peer.served, peer.client))
                if peer.link is not None:
                    peer.link.send(frame)
            return
        frame = peer.outbox.heartbeat(now)
        if frame is not None:
            self._put(peer, frame)

    def _on_gone(self, served: ServedEndpoint, message: Message) -> None:
        """Note that nobody listens to a client's frames, as the bus says; several times in a row end its streams."""
        if not message.no_responders or self._clock() < self._grace_until:
            return
        client = int(message.subject.rpartition(".")[2], 16)
        peer = self._peers.get((served.key.path.namespace, client))
        if peer is None:
            return
        peer.missing += 1
        if peer.missing >= GONE_AFTER:
            _log.info("Client %x is gone; ending its %d streams.", client, len(peer.streams))
            peer.cancel_all()

    def _on_state(self, connected: bool) -> None:
        if connected:
            self._grace_until = self._clock() + GRACE

    def _on_control(self, served: ServedEndpoint, message: Message) -> None:
        try:
            self._control_server.take(served.key.path, message)
        except UNREADABLE as error:
            self._complain(message.subject, error)
