"""The client side of requests: opens streams on instances, takes their items in, notices every loss.

One `Caller` per process. All its streams share one inbox subject per Dynamo namespace,
so one message brings what a worker's step has for all of them. Items are pushed into
callbacks; `after_batch` lets a writer act once per socket read. The protocol's
decisions are in `inbox`; this is the shell around it: subscriptions, timers, pings.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dynamo.runtime.context import Context
from dynamo.runtime.errors import Cancelled, CannotConnect, DynamoException, InvalidArgument, from_code
from dynamo.runtime.names import InstanceKey, frame_subject, reply_subject, request_subject
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.request_plane.call import Call, Listening, OnEnd, OnItem
from dynamo.runtime.request_plane.control_client import ControlClient
from dynamo.runtime.request_plane.direct_frames import DirectReceiver
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.request_sender import HOLD, RESEND, Sending
from dynamo.runtime.request_plane.wire import (
    PING,
    UNREADABLE,
    ControlReply,
    decode_frame,
    decode_pong,
    decode_rejection,
)
from dynamo.runtime.transport.bus import Bus, Message, Verdict

__all__ = ["Call", "Caller", "OnEnd", "OnItem", "Verdict"]

_log = logging.getLogger(__name__)

TICK: Final = 0.1
GRACE: Final = 5.0
"""Seconds after an own reconnect in which "nobody listens" means "try again"."""
_NOT_CONNECTED: Final = "Not connected to the message bus. Check NATS_SERVER."
OUTAGE: Final = 10.0
"""Seconds without the bus after which open streams are given up."""


class Caller:
    """Caller of instances over one bus: everything that one process asks of them."""

    def __init__(
        self, bus: Bus, client_id: int, *, clock: Callable[[], float] = time.monotonic, direct: bool = False
    ) -> None:
        """Begin; `direct`: workers that can reach this process may send frames beside the bus."""
        self._bus = bus
        self._client = client_id
        self._clock = clock
        self._listening: dict[str, Listening] = {}
        self._entering: dict[str, asyncio.Task[DynamoException | None]] = {}
        self._tasks = TaskOwner(_log)
        self._calls: dict[int, Call] = {}
        self._control_client = ControlClient(bus, client_id)
        self._sending = Sending(bus, client_id, self._control_client, clock, self.end, self._on_pong, self._offer)
        self._direct = DirectReceiver(self._on_direct_frame, clock, lambda: bus.max_payload) if direct else None
        self._last_stream = 0
        self._verdicts: list[Callable[[InstanceKey, Verdict], None]] = []
        self._batch: list[Callable[[], None]] = []
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._grace_until = 0.0
        self._away_since: float | None = None
        self.garbage = 0
        """Messages that could not be read."""
        bus.on_state(self._on_state)

    @property
    def active(self) -> int:
        """Count the streams that are open."""
        return len(self._calls)

    # -- life

    async def start(self, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            await self.listen(namespace)

    async def listen(self, namespace: str) -> None:
        """Read the inbox of one more namespace; needed before `open` and `control` there."""
        if namespace in self._listening:
            return
        entering = self._entering.get(namespace)
        if entering is None:  # whoever comes meanwhile waits for the same: two subscriptions would bring all twice
            entering = self._entering[namespace] = self._tasks.start(self._enter(namespace), "listen")
            entering.add_done_callback(lambda _: self._entering.pop(namespace, None))
        if (error := await asyncio.shield(entering)) is not None:
            raise error

    async def _enter(self, namespace: str) -> DynamoException | None:
        here = Listening(namespace)
        subjects = (
            (frame_subject(namespace, self._client), functools.partial(self._on_frame, here)),
            (reply_subject(namespace, self._client, "*"), functools.partial(self._on_answer, here)),
        )
        try:
            await here.enter(self._bus, subjects)
        except DynamoException as error:
            return error
        except asyncio.CancelledError:  # by `stop`; those that wait weren't cancelled
            return Cancelled("this client is shutting down")
        if self._direct is not None:
            await self._direct.start()
        self._listening[namespace] = here
        return None

    async def stop(self) -> None:
        """End everything: open streams end with `Cancelled`."""
        for call in tuple(self._calls.values()):
            self.end(call, Cancelled("this client is shutting down"))
        self._control_client.send_cancels()
        self._control_client.give_up(CannotConnect("this client is shutting down"))
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._tasks.cancel()
        await self._tasks.ended()
        if self._direct is not None:
            self._direct.stop()
        for here in self._listening.values():
            await here.leave()
        self._listening.clear()

    # -- streams

    def open(self, instance: InstanceKey, payload: Any, *, context: Context, on_item: OnItem, on_end: OnEnd) -> Call:
        """Send a request; its items are pushed into `on_item(data, last)`, its end into `on_end(error)`.
        Neither is called before this returns. The request waits while the bus is away, up to its deadline, and
        while its worker has enough to read. Raises `InvalidArgument` where the payload can't be encoded.
        """
        here = self._listening.get(instance.path.namespace)
        if here is None:
            raise InvalidArgument(f"listen({instance.path.namespace!r}) before opening a stream there")
        now = self._clock()
        self._last_stream += 1
        call = Call(self, self._last_stream, instance, context, on_item, on_end)
        call.inbox = self._inbox(here, instance, now)
        if call.inbox.pace.waits(context.id()):
            call.payload = (payload,)  # others of its request wait already: it is encoded when its turn comes
        else:
            call.request = self._sending.encoded(call, payload, now)
        call.inbox.open(call, now)
        self._calls[call.stream] = call
        self._guard(call, context, now)
        self._sending.send(call, now)
        self._arm(now)
        return call

    def _guard(self, call: Call, context: Context, now: float) -> None:
        """End the call with its context or at its deadline, whichever comes first."""
        loop = asyncio.get_running_loop()
        if context.is_stopped():
            loop.call_soon(call.stop)
        else:
            context.on_stop(call.stop)
        if context.deadline is not None:
            call.timer = loop.call_later(max(0.0, context.deadline - now), call.expire)

    def end(self, call: Call, error: DynamoException) -> None:
        """End a call from this side; the worker hears of it."""
        if call.open:
            call.inbox.end(call, error, self._clock(), tell=True)
            self._collect(call.inbox)

    def cancelled(self, call: Call) -> None:
        """Take the word that `call.cancel()` was called."""
        call.inbox.cancel(call.stream, self._clock())
        self._collect(call.inbox)

    def closed(self, call: Call) -> None:
        self._calls.pop(call.stream, None)

    def _inbox(self, here: Listening, instance: InstanceKey, now: float) -> Inbox:
        inbox = here.inboxes.get(instance.id) or here.inboxes.setdefault(instance.id, Inbox(instance, now))
        inbox.key = instance
        if instance not in inbox.subjects:
            inbox.subjects[instance] = request_subject(instance), reply_subject(here.namespace, self._client, "")
        return inbox

    # -- what arrives

    def after_batch(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when all messages that came with this socket read were handled."""
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._end_batch)
        self._batch.append(callback)

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, []
        for callback in batch:
            try:
                callback()
            except Exception:  # one writer's mistake must not stop the others
                _log.exception("an after_batch callback failed")

    def _on_frame(self, here: Listening, message: Message) -> None:
        try:
            frame = decode_frame(message.data)
        except UNREADABLE as error:
            self._complain(here, message, error)
            return
        inbox = here.inboxes.get(frame.worker)
        if inbox is None or (frame.heartbeat and inbox.early.linked):
            return  # a heartbeat that overtakes frames of the worker's stream says nothing
        before = inbox.verdict
        inbox.receive(frame, self._clock())
        self._act(inbox, before)

    def _offer(self, inbox: Inbox) -> bytes:
        return b"" if self._direct is None else self._direct.offer(inbox)

    def _on_direct_frame(self, inbox: Inbox, data: bytes) -> None:
        """Take a frame that came on a worker's own stream."""
        try:
            frame = decode_frame(data)
        except UNREADABLE:
            frame = None
        if frame is None or frame.worker != inbox.key.id:
            self.garbage += 1
            if self._direct is not None:
                self._direct.hang_up(inbox)
            return
        before, now = inbox.verdict, self._clock()
        inbox.receive(frame, now)
        if inbox.early.since is not None:
            self._arm(now)  # also where nothing is open: what waits, or holds the stream up, must end
        self._act(inbox, before)

    def _complain(self, here: Listening, message: Message, error: Exception) -> None:
        self.garbage += 1
        if not here.complained:
            here.complained = True
            _log.warning("unreadable message on %s: %s (said once)", message.subject, error)

    def _on_answer(self, here: Listening, message: Message) -> None:
        token = message.subject.rpartition(".")[2]
        try:
            if token.isdigit():
                self._on_refusal(int(token), message)
            else:
                self._control_client.on_reply(token, message)
        except UNREADABLE as error:
            self._complain(here, message, error)

    def _on_refusal(self, stream: int, message: Message) -> None:
        call = self._calls.get(stream)
        if call is None or call.accepted:
            return
        now = self._clock()
        if not message.no_responders:
            refusal = decode_rejection(message.data)
            call.inbox.end(call, from_code(refusal.code, refusal.message), now)
        elif now < self._grace_until:
            call.sent, call.resend_at = False, now + RESEND
        else:
            # Nobody takes requests; that it is dead, only its control subject can say.
            call.inbox.end(call, CannotConnect("the worker takes no requests any more"), now)
            self._ping_inbox(call.inbox, now)

    # -- control

    async def control(self, instance: InstanceKey, op: str, body: Any, *, timeout: float) -> Any:
        """Ask an instance to run one of its operations and return what it answers.

        Raises `CannotConnect` where nobody listens, `ConnectionTimeout`, or the operation's own error.
        """
        self._control_client.check()
        await self.listen(instance.path.namespace)
        return await self._control_client.answer(instance, op, body, timeout)

    async def ping(self, instance: InstanceKey, *, timeout: float = 1.0) -> Verdict:
        """Ask whether an instance lives."""
        try:
            await self.control(instance, PING, None, timeout=timeout)
        except CannotConnect:
            grace = not self._bus.connected or self._clock() < self._grace_until
            return Verdict.SILENT if grace else Verdict.DEAD
        except DynamoException:
            return Verdict.SILENT
        here = self._listening.get(instance.path.namespace)
        inbox = here.inboxes.get(instance.id) if here else None
        if inbox is not None:
            before = inbox.verdict
            inbox.alive(self._clock())
            self._act(inbox, before)
        return Verdict.ALIVE

    def on_verdict(self, listener: Callable[[InstanceKey, Verdict], None]) -> None:
        """Call `listener(instance, verdict)` whenever traffic changes what is known of an instance."""
        self._verdicts.append(listener)

    def _collect(self, inbox: Inbox) -> None:
        self._control_client.cancel(inbox.key, inbox.to_cancel)
        inbox.to_cancel.clear()

    # -- time

    def _arm(self, now: float) -> None:
        if self._ticking is None:
            self._tick_due = now + TICK
            self._ticking = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        now = self._clock()
        late = now - self._tick_due
        watched = False
        for here in self._listening.values():
            for worker, inbox in tuple(here.inboxes.items()):
                if late > TICK:
                    inbox.postpone(late, now)
                watched |= self._look_after(inbox, now)
                if inbox.forgettable(now):
                    del here.inboxes[worker]
                    if self._direct is not None:
                        self._direct.forget(inbox)
        if watched:
            self._arm(now)

    def _look_after(self, inbox: Inbox, now: float) -> bool:
        if self._away_since is not None:
            self._sit_out(inbox, now)
            return inbox.watched()
        self._sending.look_after(inbox, now)
        before, gaps, held = inbox.verdict, inbox.gaps, inbox.early.held
        if inbox.tick(now):
            self._ping_inbox(inbox, now)
        if inbox.gaps != gaps and not held and self._direct is not None:
            self._direct.hang_up(inbox)  # its stream doesn't bring what was sent
        self._act(inbox, before)
        return inbox.watched()

    def _sit_out(self, inbox: Inbox, now: float) -> None:
        """Sit out that the bus is away: nothing can be heard, so nobody is blamed; what waits too long is given up."""
        inbox.postpone(TICK, now)
        away = now - (now if self._away_since is None else self._away_since)
        for stream in tuple(inbox.streams.values()) if away >= OUTAGE else ():
            inbox.end(stream, CannotConnect(_NOT_CONNECTED), now, tell=True)
        if away >= OUTAGE and inbox.early.since is not None:
            inbox.give_up(now)  # a stream that is held up would stay so
        for stream in tuple(inbox.pending.values()) if away >= HOLD else ():
            inbox.end(stream, CannotConnect(_NOT_CONNECTED), now)

    def _ping_inbox(self, inbox: Inbox, now: float) -> None:
        inbox.pinged(now)
        try:
            self._control_client.ping(inbox.key, functools.partial(self._on_pong, inbox, now))
        except CannotConnect:
            _log.debug("a ping could not be sent")
        self._arm(now)

    def _on_pong(self, inbox: Inbox, asked: float, answer: ControlReply | DynamoException) -> None:
        now = self._clock()
        before = inbox.verdict
        if isinstance(answer, ControlReply) and not answer.code:
            inbox.pong(decode_pong(answer.body), asked, now)
        elif isinstance(answer, CannotConnect):
            inbox.no_responders(now, grace=now < self._grace_until, asked=asked)
        self._act(inbox, before)

    def _act(self, inbox: Inbox, before: Verdict) -> None:
        """Send and say what the inbox has decided."""
        if inbox.to_cancel:
            self._collect(inbox)
        if inbox.verdict is before:
            return
        _log.info("instance %s %014x is %s", inbox.key.path, inbox.key.id, inbox.verdict.value)
        for listener in tuple(self._verdicts):
            for key in tuple(inbox.subjects):
                listener(key, inbox.verdict)

    def _on_state(self, connected: bool) -> None:
        now = self._clock()
        if not connected:
            self._away_since = now
            return
        away, self._away_since = self._away_since, None
        if away is None:
            return
        self._grace_until = now + GRACE
        inboxes = [inbox for here in self._listening.values() for inbox in here.inboxes.values()]
        for inbox in inboxes:
            inbox.reconnected(self._last_stream)
            inbox.pace.reset()
        for call in tuple(self._calls.values()):
            if not call.accepted:
                self._sending.begin_anew(call, now)
        for inbox in inboxes:
            self._sending.pump(inbox)
