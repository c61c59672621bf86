"""One worker as one client sees it: which frames came, which streams are open, whether it is alive.

`Caller` feeds it frames, pongs and the time; it calls the streams' callbacks and keeps in `to_cancel` and the return
values what is to be sent. Nothing here waits, sends or reads a clock, so losses, repeats, reorderings and restarts are
played through by tables and by hypothesis. The rule that all of it serves: a stream delivers exactly the items that
were sent, in order, or ends in one error.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from dynamo.runtime.errors import (
    CannotConnect,
    ConnectionTimeout,
    Disconnected,
    DynamoException,
    EngineError,
    ProtocolMismatch,
    StreamIncomplete,
)
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.early_frames import EarlyFrames, Flow
from dynamo.runtime.request_plane.request_sender import Pace
from dynamo.runtime.request_plane.wire import FAILED, HEARTBEAT, MORE, VERSION, Item, Pong, StepFrame, decode_failure
from dynamo.runtime.transport.bus import Verdict

_log = logging.getLogger(__name__)

MISSED: Final = 2 * HEARTBEAT
"""Silence after which a worker with open streams is pinged."""
PING_TIMEOUT: Final = 1.0
UNACCEPTED: Final = 2.0
"""Suspicion after which requests that were not accepted go elsewhere."""
DEAD_AFTER: Final = 5.0
"""Suspicion after which a worker counts as dead."""
SETTLE: Final = 0.25
"""Seconds that frames may lag behind a pong which speaks of them."""
DEAD_PING: Final = 1.0
FORGET_AFTER: Final = 60.0
"""How long a dead worker without streams is still asked."""
GHOST_QUIET: Final = 0.1
"""Seconds between two cancels of a stream that a worker won't let go."""
_MAX_GHOSTS: Final = 4096


class _Claim:
    """Claim of a pong, to be compared with what came once frames had time to settle."""

    __slots__ = ("asked", "due", "pong")

    def __init__(self, pong: Pong, asked: float, due: float) -> None:
        self.pong, self.asked, self.due = pong, asked, due


class Inbox:
    """The streams of one client on one worker in one namespace."""

    def __init__(self, key: InstanceKey, now: float) -> None:
        self.key = key
        """How the worker is reached: the last endpoint of its that was called."""
        self.subjects: dict[InstanceKey, tuple[str, str]] = {}
        """Of each endpoint that was called: where requests go, and, but for the stream's number, their answers."""
        self.streams: dict[int, OpenStream] = {}
        """Accepted ones."""
        self.pending: dict[int, OpenStream] = {}
        """Not yet accepted, oldest first."""
        self.verdict = Verdict.ALIVE
        self.pace: Pace[Any] = Pace()
        """Of requests to it."""
        self.to_cancel: list[int] = []
        """Streams whose end the worker must hear of; the owner sends and empties it."""
        self.repeats = 0
        self.gaps = 0
        self.early = EarlyFrames()
        self._expected: int | None = None
        self._ghosts: dict[int, float] = {}
        self._heard = now
        self._in_outage = 0
        """The last stream that was opened before the bus came back, until the worker is heard again; 0: none."""
        self._pinged: float | None = None
        self._asked = now
        self._suspect_since = now
        self._claim: _Claim | None = None

    @property
    def idle(self) -> bool:
        return not self.streams and not self.pending

    # -- streams

    def open(self, stream: OpenStream, now: float) -> None:
        """Begin: its request is about to be sent."""
        if self.idle:
            if not self.early.linked:  # a worker that has a stream to us doesn't forget us
                self._expected = None
            self._heard = now
        stream.since = now
        self.pending[stream.stream] = stream

    def cancel(self, stream: int, now: float) -> bool:
        """Give a stream up without a word to its owner; True where it was open."""
        known = self.streams.pop(stream, None) or self.pending.pop(stream, None)
        if known is None:
            return False
        self._bury(stream, now)
        return True

    def end(self, stream: OpenStream, error: DynamoException | None, now: float, *, tell: bool = False) -> None:
        """Close a stream and tell its owner, once; `tell` the worker too."""
        if self.streams.pop(stream.stream, None) is None and self.pending.pop(stream.stream, None) is None:
            return
        if tell:
            self._bury(stream.stream, now)
        stream.finish_safely(error)

    def fail_all(self, error: DynamoException, now: float) -> None:
        for stream in [*self.streams.values(), *self.pending.values()]:
            self.end(stream, error, now, tell=True)

    def _bury(self, stream: int, now: float) -> None:
        if len(self._ghosts) >= _MAX_GHOSTS:
            self._ghosts.clear()
        self._ghosts[stream] = now
        self.to_cancel.append(stream)

    # -- frames

    def receive(self, frame: StepFrame, now: float) -> None:
        """Take one frame in."""
        self._heard = now
        self._in_outage = 0
        if self.verdict is Verdict.SILENT:
            self.alive(now)
        if frame.version != VERSION:
            self._refuse(frame.version, now)
            return
        expected = self._expected
        if frame.heartbeat:
            if expected is None or (frame.seq >= expected and not self.early.keep(frame, now)):
                self.give_up(now, frame.seq)
            return
        if frame.seq != expected and not self._in_turn(frame, expected, now):
            return
        self._take(frame, now)
        if self.early.since is not None:
            self._follow(frame.seq + 1, now)
            if self.early.since is not None:
                self.early.wait_anew(now)  # the bus catches up

    def _in_turn(self, frame: StepFrame, expected: int | None, now: float) -> bool:
        """Tell whether a frame of another number than the expected one is to be taken now."""
        if expected is not None:
            if frame.seq < expected:
                self.repeats += 1
                return False
            if self.early.keep(frame, now):
                return False
            if self.early.since is not None:
                self.early.frames[frame.seq] = frame
                self.give_up(now)
                return False
        self._advance(frame.seq - 1, now)
        return True

    def _take(self, frame: StepFrame, now: float) -> None:
        self._expected = frame.seq + 1
        for stream in frame.accepted:
            self._accept(stream, now)
        self._deliver(frame.items, now)

    def _follow(self, seq: int, now: float) -> None:
        """Take what was kept from this number on."""
        while (following := self.early.next(seq)) is not None:
            self._take(following, now)
            seq += 1

    def give_up(self, now: float, last: int | None = None) -> None:
        """Go on without what is missing of the numbers up to the last that was sent, or without all that is."""
        for frame in self.early.take(last):
            if self._expected is None or frame.seq >= self._expected:
                self._advance(frame.seq - 1, now)
                self._take(frame, now)
        self._advance(self.early.claimed if last is None else last, now)
        if self.early.since is not None and self._expected is not None:
            self._follow(self._expected, now)
            if self.early.since is not None:
                self.early.wait_anew()

    def link(self, sent: int, flow: Flow | None = None) -> None:
        """Note that the worker has a stream to us; `sent` was its last frame's number when it heard of ours."""
        self.early.linked, self.early.flow = True, flow
        if self._expected is None:
            self._expected = sent + 1

    def unlink(self, now: float) -> None:
        """Note that the stream has ended."""
        self.early.unlink(now)

    @property
    def linkable(self) -> bool:
        """Tell whether `link` would know which frame comes next: nothing is open, or frames have come."""
        return not self.early.linked and (self._expected is not None or self.idle)

    def _advance(self, seq: int, now: float) -> None:
        """Go on to `seq`: all frames up to it were sent; fail what was lost with those that did not come."""
        if (expected := self._expected) is not None and expected > seq:
            return  # it never moves backwards
        self._expected = seq + 1
        if expected is None:
            return
        self.gaps += 1
        error = StreamIncomplete("a part of the answer was lost on the way")
        for stream in tuple(self.streams.values()):
            self.end(stream, error, now, tell=True)

    def _accept(self, stream: int, now: float) -> None:
        pending = self.pending.pop(stream, None)
        if pending is not None:
            if self.verdict is not Verdict.ALIVE:
                self.alive(now)  # it took a request that was sent after it had been given up
            pending.accepted = True
            pending.request = None
            self.streams[stream] = pending

    def _deliver(self, items: list[Item], now: float) -> None:
        get = self.streams.get
        for item in items:
            stream = get(item.stream)
            if stream is None:
                self._stray(item, now)
            elif item.end == MORE:
                on_item = stream.on_item  # a function in a slot: called in one step, it is looked up as a method
                try:
                    on_item(item.data, False)
                except Exception as error:  # one reader's mistake must not lose the others' items
                    self._blame_reader(stream, error, now)
            else:
                self._finish(stream, item, now)

    def _finish(self, stream: OpenStream, item: Item, now: float) -> None:
        if item.end == FAILED:
            self.end(stream, decode_failure(item.data), now)
            return
        if item.data is not None:
            try:
                stream.on_item(item.data, True)
            except Exception as error:  # as above
                self._blame_reader(stream, error, now)
        self.end(stream, None, now)

    def _stray(self, item: Item, now: float) -> None:
        """Cancel an item of a stream that is not open here again, now and then."""
        early = self.pending.get(item.stream)
        if early is not None:
            self.end(early, StreamIncomplete("the beginning of the answer was lost"), now, tell=item.end == MORE)
        elif item.end != MORE:
            self._ghosts.pop(item.stream, None)
        elif now - self._ghosts.get(item.stream, -GHOST_QUIET) >= GHOST_QUIET:
            self._bury(item.stream, now)

    def _blame_reader(self, stream: OpenStream, error: Exception, now: float) -> None:
        _log.error("stream %d: its reader failed", stream.stream, exc_info=error)
        self.end(stream, EngineError(f"{type(error).__name__}: {error}"), now, tell=True)

    def _refuse(self, version: int, now: float) -> None:
        self.fail_all(ProtocolMismatch(f"the worker speaks version {version}, this side {VERSION}"), now)

    # -- who is alive

    def postpone(self, seconds: float, now: float) -> None:
        """Postpone it: our own side was held up for so long, and time in which nothing could be heard doesn't count."""
        self._heard += seconds
        self._suspect_since += seconds
        if self._pinged is not None:
            self._pinged += seconds
        if self._claim is not None:
            self._claim.due += seconds
        self.early.postpone(seconds, now)
        for stream in self.pending.values():
            stream.since += seconds

    def reconnected(self, last_stream: int) -> None:
        """Note that the bus was away: a worker that left meanwhile did so for none of those that it had accepted."""
        self._in_outage = last_stream

    def tick(self, now: float) -> bool:
        """Act on what did not come; True: send a ping and call `pinged`."""
        while (last := self.early.overdue(now, SETTLE)) is not None:
            self.give_up(now, max(last, (self._expected or 0) - 1))
        if self._claim is not None and self.early.held:
            self._claim.due = now + SETTLE  # frames of which it speaks wait in the stream
        elif self._claim is not None and now >= self._claim.due:
            self._settle(self._claim, now)
        if self._pinged is not None and now - self._pinged >= PING_TIMEOUT:
            self._silent(now)
        if self._pinged is not None:
            return False
        if self.verdict is Verdict.SILENT or self._worried(now):
            return True
        return self.verdict is Verdict.DEAD and now - self._asked >= DEAD_PING

    def forgettable(self, now: float) -> bool:
        """Tell whether nothing is open here, and nothing more is to be learned."""
        if not self.idle:
            return False
        if self.verdict is Verdict.ALIVE:
            return now - self._heard >= FORGET_AFTER
        return now - self._suspect_since >= FORGET_AFTER

    def watched(self) -> bool:
        """Tell whether `tick` has anything to look at."""
        return not self.idle or self.verdict is not Verdict.ALIVE or self.early.since is not None

    def pinged(self, now: float) -> None:
        self._pinged = self._asked = now

    def pong(self, pong: Pong, asked: float, now: float) -> None:
        """Take the pong to the ping of `asked`: the worker is alive; its words are checked a little later."""
        self.alive(now)
        self._claim = _Claim(pong, asked, now + SETTLE)

    def no_responders(self, now: float, *, grace: bool, asked: float | None = None) -> None:
        """Note that nobody listens, as the bus says; `grace`: everybody is reconnecting, so that means little.

        `asked`: when the question was sent. What was sent after it did not reach the worker: the bus says so,
        too.
        """
        if grace:
            self._suspect(now)
            self._pinged = now  # asked again after a second, since another answer may come then
            return
        self._pinged = None
        self._die(now, asked)

    def _worried(self, now: float) -> bool:
        if self.streams and now - self._heard >= MISSED:
            return True
        return self._claim is None and any(now - s.since >= s.limit for s in self.pending.values())

    def alive(self, now: float) -> None:
        """Note that there is proof of life."""
        self._heard = now
        self._in_outage = 0
        self._pinged = None
        self.verdict = Verdict.ALIVE

    def _suspect(self, now: float) -> None:
        if self.verdict is Verdict.ALIVE:
            self.verdict = Verdict.SILENT
            self._suspect_since = now if self._pinged is None else self._pinged

    def _silent(self, now: float) -> None:
        """Note that a ping was not answered in time."""
        self._suspect(now)
        self._pinged = None
        suspected = now - self._suspect_since
        if self.verdict is Verdict.SILENT and suspected >= DEAD_AFTER:
            self._die(now)
        elif suspected >= UNACCEPTED or self.verdict is Verdict.DEAD:
            error = ConnectionTimeout("the worker did not answer in time")
            for stream in [s for s in self.pending.values() if now - s.since >= s.limit]:
                self.end(stream, error, now, tell=True)

    def _die(self, now: float, asked: float | None = None) -> None:
        if self.verdict is not Verdict.DEAD:
            self.verdict = Verdict.DEAD
            self._suspect_since = now
        self._claim = None
        self.pace.reset()
        for stream in [*self.streams.values(), *self.pending.values()]:
            # Whether it was accepted says nothing: a worker that a request kills has no time to say so.
            had = stream.accepted or (stream.sent and asked is not None and stream.since <= asked)
            gone = self._lost(stream) if had else CannotConnect("the worker is gone")
            self.end(stream, gone, now, tell=True)

    def _lost(self, stream: OpenStream) -> DynamoException:
        """Return how a stream ends whose worker is gone: where that left during an outage, it hasn't died of it.

        A stream that it hadn't accepted was sent anew when the bus came back, so it may well have died of that one.
        """
        if stream.accepted and stream.stream <= self._in_outage:
            return StreamIncomplete("the worker left while the message bus was away")
        return Disconnected("the worker was lost")

    def _settle(self, claim: _Claim, now: float) -> None:
        """Compare a pong's words with what came since; whatever is missing was lost."""
        self._claim = None
        if self._expected is not None:
            self.give_up(now, claim.pong.seq)
        known = set(claim.pong.streams)
        for stream in [*self.streams.values(), *self.pending.values()]:
            if stream.since > claim.asked:
                continue
            if stream.accepted:
                if stream.stream not in known:
                    self.end(stream, StreamIncomplete("the worker no longer knows the request"), now)
            elif stream.stream in known:
                self.end(stream, StreamIncomplete("the beginning of the answer was lost"), now, tell=True)
            elif claim.asked - stream.since >= stream.limit:
                self.end(stream, ConnectionTimeout("the worker never saw the request"), now, tell=True)
