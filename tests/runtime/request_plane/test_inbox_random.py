"""One worker in one client's sight, everything at random: exact, or one error."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.runtime.errors import DynamoException
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.call import OpenStream
from dynamo.runtime.request_plane.inbox import Inbox
from dynamo.runtime.request_plane.peer import Outbox
from dynamo.runtime.request_plane.wire import DONE, Pong, decode_frame

KEY = InstanceKey(EndpointPath("n", "c", "e"), 7)


class Stream:
    """An open stream with what it got."""

    def __init__(self, number: int) -> None:
        self.items: list[Any] = []
        self.ends: list[DynamoException | None] = []
        self.open = OpenStream(number, lambda data, _: self.items.append(data), self.ends.append)

    @property
    def codes(self) -> list[str | None]:
        return [None if end is None else end.code for end in self.ends]


@dataclasses.dataclass
class Sent:
    """What the worker really did for one stream."""

    items: list[int] = dataclasses.field(default_factory=list)
    finished: bool = False
    cancelled: bool = False


class Simulation:
    """A worker's outbox and a client's inbox with a channel between that loses, repeats and reorders."""

    def __init__(self, seed: int, loss: float, repeat: float, swap: float) -> None:
        self.random = random.Random(seed)
        self.loss, self.repeat, self.swap = loss, repeat, swap
        self.now = 0.0
        self.alive = True
        self.outbox = Outbox(7, 0.0)
        self.inbox = Inbox(KEY, 0.0)
        self.streams: dict[int, Stream] = {}
        self.sent: dict[int, Sent] = {}
        self.wire: list[tuple[float, bytes]] = []
        self.pongs: list[tuple[float, float, Pong | None]] = []

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def open(self) -> None:
        number = len(self.streams) + 1
        stream = self.streams[number] = Stream(number)
        self.inbox.open(stream.open, self.now)
        if self.alive and not self.chance(self.loss):
            self.sent[number] = Sent()
            self.outbox.accept(number)

    def step(self) -> None:
        """One engine step: some streams get items, some end."""
        if not self.alive:
            return
        for number in sorted(self.outbox.streams):
            sent = self.sent[number]
            for _ in range(self.random.randrange(3)):
                sent.items.append(len(sent.items))
                self.outbox.items.append((number, sent.items[-1]))
            if self.chance(0.1):
                sent.finished = True
                self.outbox.items.append((number, None, DONE))
                self.outbox.streams.discard(number)
        self.send(self.outbox.take(self.now, self.random.choice([200, 1 << 20])))

    def send(self, frames: list[bytes]) -> None:
        for frame in frames:
            copies = 0 if self.chance(self.loss) else 2 if self.chance(self.repeat) else 1
            self.wire.extend([(self.now, frame)] * copies)
            if len(self.wire) > 1 and self.chance(self.swap):
                self.wire[-1], self.wire[-2] = self.wire[-2], self.wire[-1]

    def deliver(self) -> None:
        for _ in range(self.random.randrange(len(self.wire) + 1)):
            self.receive()
        self.send_cancels()

    def receive(self) -> None:
        self.inbox.receive(decode_frame(self.wire.pop(0)[1]), self.now)

    def send_cancels(self) -> None:
        cancels, self.inbox.to_cancel = self.inbox.to_cancel, []
        if not self.alive or self.chance(self.loss):
            return
        for number in cancels:
            if number in self.outbox.streams:
                self.sent[number].cancelled = True
                self.outbox.discard(number)

    def tick(self) -> None:
        self.now += 0.1
        while any(sent <= self.now - LAG for sent, _ in self.wire):
            self.receive()
        if self.alive and (beat := self.outbox.heartbeat(self.now)):
            self.send([beat])
        due = [p for p in self.pongs if p[0] <= self.now]
        self.pongs = [p for p in self.pongs if p[0] > self.now]
        for _, asked, pong in due:
            if pong is None:
                self.inbox.no_responders(self.now, grace=False)
            else:
                self.inbox.pong(pong, asked, self.now)
        if self.inbox.tick(self.now):
            self.inbox.pinged(self.now)
            self.ping()
        self.send_cancels()

    def ping(self) -> None:
        if self.chance(self.loss):
            return
        if not self.alive:
            self.pongs.append((self.now, self.now, None))
            return
        self.send(self.outbox.take(self.now, 1 << 20))
        self.pongs.append((self.now, self.now, Pong(self.outbox.seq, sorted(self.outbox.streams))))

    def check(self) -> None:
        """What arrived is a beginning of what was sent; an end that claims to be good had everything."""
        for number, stream in self.streams.items():
            assert len(stream.ends) <= 1
            sent = self.sent.get(number, Sent())
            assert stream.items == sent.items[: len(stream.items)]
            if stream.ends == [None]:
                assert sent.finished
                assert stream.items == sent.items


LAG = 0.2
"""Seconds that a frame is under way at most; a pong's claim is settled a little later."""
ACTIONS = ["open", "step", "step", "step", "deliver", "deliver", "tick", "die"]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.05, 0.3]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 0.2]),
    st.integers(10, 120),
    st.booleans(),
)
def test_every_stream_is_exact_or_ends_in_one_error(
    seed: int, loss: float, repeat: float, swap: float, actions: int, dies: bool
) -> None:
    """Losses, repeats, reorderings, a worker's death, lost requests, cancels and pings, in any mixture."""
    world = Simulation(seed, loss, repeat, swap)
    for _ in range(actions):
        action = world.random.choice(ACTIONS)
        if action == "die":
            world.alive = world.alive and not (dies and world.chance(0.1))
        else:
            getattr(world, action)()
        world.check()
    world.loss = 0.0
    for _ in range(300):
        world.step()
        world.deliver()
        world.tick()
    world.check()
    assert all(stream.ends for stream in world.streams.values())
    if not (loss or swap) and world.alive:
        assert all(stream.ends == [None] for stream in world.streams.values())
    if world.alive:
        assert not world.outbox.streams or all(n > max(world.streams) for n in world.outbox.streams)
