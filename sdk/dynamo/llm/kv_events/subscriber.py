"""The workers' KV events, followed into the routers' indexes: the shell around `dynamo.llm.kv_events.reader`.

Its owner (a frontend's `ModelWatcher`, a `dynamo.llm.KvRouter`) says who joins and leaves. One subscription per
component, one task per instance: it waits until something is missing and then fetches the instance's own snapshot. An
instance that can't be followed is reported once and counted in `/metrics`; what it caches is predicted then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from dynamo.llm.kv.index import KvIndex
from dynamo.llm.kv.messages import OPERATION, UNREADABLE, VERSION, KvStep, Part, Step, decode_step
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.kv_events.reader import EventReader
from dynamo.runtime.errors import CannotConnect, DynamoException
from dynamo.runtime.names import InstanceKey, kv_subject
from dynamo.runtime.process.backoff import Backoff
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.runtime.transport.bus import Bus, Message, Subscription, leave

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 5.0
ASK_AT_ONCE: Final = 16
"""Snapshots that are fetched side by side."""
PAUSES: Final = Backoff(0.05, 10.0)
"""Before the next snapshot of an instance; twice as long each time that one doesn't come."""
HASHES_PER_TURN: Final = 16_384
"""What one instance may bring into the index in one turn of the loop: two milliseconds' work."""
SILENT_SECONDS: Final = 25.0
"""A worker repeats its last number every 10 s at least: whom nothing is heard of for longer is asked again."""

NO_EVENTS: Final = "no_events"
BLOCK_SIZE: Final = "block_size"
NO_SNAPSHOT: Final = "no_snapshot"
SILENT: Final = "silent"
OVERFULL: Final = "overfull"


class Routed(Protocol):
    """Routing whose router is told."""

    @property
    def router(self) -> KvScheduler: ...


class Control(Protocol):
    """The part of `dynamo.runtime`'s Caller that asks instances."""

    async def control(self, instance: InstanceKey, op: str, body: Any, *, timeout: float) -> Any: ...


class Meter(Protocol):
    """Meter where it is counted."""

    unfollowed: dict[str, int]
    """Instances by why their events are not followed."""

    def add(self, counter: str, amount: float = 1) -> None: ...


class _Follower:
    """One instance whose events are followed, or who is reported."""

    def __init__(self, key: InstanceKey, figures: dict[str, Any], routing: Routed, meter: Meter) -> None:
        self.key, self.figures, self.routing, self.meter = key, figures, routing, meter
        self.reader = EventReader()
        self.heard = 0
        self.steps = 0
        """Those of `reader` that `/metrics` knows of."""
        self.to_apply: deque[KvStep] = deque()
        """For the index, in order; a snapshot's slices are taken in over several turns of the loop."""
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.reported: set[str] = set()
        self.wrong: str | None = None
        """Why it isn't followed now, as `/metrics` counts it."""


class _Topic:
    """One component's events."""

    def __init__(self) -> None:
        self.followers: dict[int, _Follower] = {}
        self.subscription: Subscription | None = None
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.complained = False


class KvEventSubscriber:
    """Follow the workers' KV events into the routers' indexes; `stop` ends its tasks."""

    def __init__(self, bus: Bus, control: Control, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._bus, self._control, self._silent = bus, control, silent_seconds
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._known: dict[InstanceKey, _Follower] = {}
        self._at_once = asyncio.Semaphore(ASK_AT_ONCE)
        self._tasks = TaskOwner(log)
        self._sweeping: set[KvIndex] = set()

    # -- what the pool says

    def joined(self, key: InstanceKey, figures: dict[str, Any], routing: Routed, meter: Meter) -> None:
        """Note that an instance is there that `routing` routes to; `figures` are those that it published."""
        self.left(key)
        follower = self._known[key] = _Follower(key, figures, routing, meter)
        own, card = int(figures.get("kv_cache_block_size") or 0), routing.router.block_size
        if not figures.get("kv_events"):
            self._report(follower, NO_EVENTS, "publishes no KV events")
        elif own and own != card:
            self._report(follower, BLOCK_SIZE, f"has KV blocks of {own} tokens, and its card says {card}")
        else:
            topic = self._topic(key)
            topic.followers[key.id] = follower
            follower.task = self._tasks.start(self._keep(topic, follower), f"kv events of {key.path}")

    def left(self, key: InstanceKey) -> None:
        """Note that it is gone."""
        follower = self._known.pop(key, None)
        if follower is None:
            return
        self._count(follower, None)
        follower.to_apply.clear()
        if follower.task is not None:
            follower.task.cancel()
            follower.task = None  # its end holds the follower: in a circle both would wait for the collector
        place = (key.path.namespace, key.path.component)
        topic = self._topics.get(place)
        if topic is not None and topic.followers.get(key.id) is follower:
            del topic.followers[key.id]
            if not topic.followers:
                del self._topics[place]
                self._tasks.start(self._close(topic), "kv events end")

    def behind(self) -> list[InstanceKey]:
        """Return those whose events are followed, but whose snapshot is not there yet, or has to come again."""
        return [key for key, follower in self._known.items() if follower.task is not None and follower.reader.behind]

    async def stop(self) -> None:
        """Follow nobody any more."""
        for key in list(self._known):
            self.left(key)
        await self._tasks.ended()

    # -- what the bus brings

    def _topic(self, key: InstanceKey) -> _Topic:
        place = (key.path.namespace, key.path.component)
        topic = self._topics.get(place)
        if topic is None:
            topic = self._topics[place] = _Topic()
            topic.task = self._tasks.start(self._listen(topic, kv_subject(*place, "*")), f"listen to {place}")
        return topic

    async def _listen(self, topic: _Topic, subject: str) -> None:
        pause = PAUSES.first
        while topic.subscription is None:
            try:
                topic.subscription = await self._bus.subscribe(
                    subject, lambda message: self._on_message(topic, message), lambda: self._on_loss(topic)
                )
            except CannotConnect as error:
                log.warning("Can't subscribe to KV events: %s", error)
                await asyncio.sleep(pause)
                pause = PAUSES.after(pause)
        topic.ready.set()

    async def _close(self, topic: _Topic) -> None:
        if topic.task is not None:
            topic.task.cancel()
            await asyncio.wait([topic.task])
        if topic.subscription is not None:
            await leave(topic.subscription)

    def _on_message(self, topic: _Topic, message: Message) -> None:
        try:
            step = decode_step(message.data)
            if step.version != VERSION:
                raise ValueError(f"its version is {step.version}, not {VERSION}")
            follower = topic.followers.get(step.worker)
            if follower is not None:
                self._heard(follower, step)
        except UNREADABLE as error:
            if not topic.complained:
                topic.complained = True
                log.warning("unreadable KV event on %s: %s (said once)", message.subject, error)

    def _heard(self, follower: _Follower, step: Step) -> None:
        follower.heard += 1
        reader, before = follower.reader, follower.reader.gaps
        try:
            steps = reader.heard(step)
        finally:
            if reader.behind:
                follower.news.set()
        if reader.gaps != before:
            follower.meter.add("model_kv_gaps_total")
        self._apply(follower, steps)

    def _on_loss(self, topic: _Topic) -> None:
        for follower in topic.followers.values():
            follower.reader.lost()
            follower.news.set()

    def _apply(self, follower: _Follower, steps: Iterable[KvStep]) -> None:
        """Apply it behind what is waiting to be applied, if anything is: order matters."""
        follower.meter.add("model_kv_steps_total", follower.reader.steps - follower.steps)
        follower.steps = follower.reader.steps
        waited = bool(follower.to_apply)
        follower.to_apply.extend(steps)
        if follower.to_apply and not waited:
            self._drain(follower)

    def _drain(self, follower: _Follower) -> None:
        router, room = follower.routing.router, HASHES_PER_TURN
        steps = follower.to_apply
        while steps and room > 0:
            step = steps.popleft()
            room -= len(step.stored) + len(step.removed) + 1
            if step.cleared:
                self._sweep_soon(router.index)
            if not router.apply(follower.key.id, step):
                most = follower.figures.get("total_kv_blocks")
                self._report(follower, OVERFULL, f"says that it caches more than its {most} blocks", predicted=False)
        if steps:
            asyncio.get_running_loop().call_soon(self._drain, follower)

    # -- what is missing

    async def _keep(self, topic: _Topic, follower: _Follower) -> None:
        """Fetch a snapshot whenever something is missing, as long as the instance is there."""
        await topic.ready.wait()
        pause = PAUSES.first
        while self._known.get(follower.key) is follower:
            if not follower.reader.behind:
                await self._wait(follower)
                continue
            async with self._at_once:
                there = await self._catch_up(follower)
            if there:
                self._fine(follower, NO_SNAPSHOT)
            behind = follower.reader.behind  # whatever keeps it so, it is asked less and less often
            pause = PAUSES.first if there and not behind else PAUSES.after(pause)
            await asyncio.sleep(pause if behind else 0)

    async def _wait(self, follower: _Follower) -> None:
        """Wait until something is missing, or nothing was heard for too long."""
        before = follower.heard
        follower.news.clear()
        try:
            async with asyncio.timeout(self._silent):
                await follower.news.wait()
        except TimeoutError:
            if follower.heard != before:
                self._fine(follower, SILENT)
                return
            follower.reader.lost()
            text = "publishes KV events that don't arrive here: its cache is looked at every"
            self._report(follower, SILENT, f"{text} {self._silent:g} s", predicted=False)

    async def _catch_up(self, follower: _Follower) -> bool:
        """Fetch one snapshot; False where it did not come."""
        reader = follower.reader
        try:
            while (asked := reader.ask()) is not None:
                answer = await self._control.control(follower.key, OPERATION, asked, timeout=ASK_SECONDS)
                part = msgspec.convert(answer, Part)
                steps = reader.answered(part)
                if part.part + 1 == part.parts:
                    follower.routing.router.follow(follower.key.id, _capacity(follower.figures))
                    follower.meter.add("model_kv_snapshots_total")
                    self._apply(follower, steps)
                    break
        except (DynamoException, *UNREADABLE) as error:
            self._apply(follower, reader.failed())
            self._report(follower, NO_SNAPSHOT, f"does not say what it caches: {error}", predicted=reader.seq is None)
            return False
        return True

    def _sweep_soon(self, index: KvIndex) -> None:
        """Free what a replaced snapshot leaves behind, a slice per turn of the loop."""
        if index not in self._sweeping:
            self._sweeping.add(index)
            asyncio.get_running_loop().call_soon(self._sweep, index)

    def _sweep(self, index: KvIndex) -> None:
        if index.sweep():
            asyncio.get_running_loop().call_soon(self._sweep, index)
        else:
            self._sweeping.discard(index)

    # -- what is said of it

    def _report(self, follower: _Follower, reason: str, text: str, *, predicted: bool = True) -> None:
        """Say it once in the log, and in `/metrics` as long as it is so."""
        self._count(follower, reason)
        if reason in follower.reported:
            return
        follower.reported.add(reason)
        ending = "; what it caches is predicted from what is sent there" if predicted else ""
        log.warning("instance %014x of %s %s%s", follower.key.id, follower.key.path, text, ending)

    def _fine(self, follower: _Follower, reason: str) -> None:
        if follower.wrong == reason:
            self._count(follower, None)

    @staticmethod
    def _count(follower: _Follower, reason: str | None) -> None:
        unfollowed = follower.meter.unfollowed
        if follower.wrong is not None:
            unfollowed[follower.wrong] -= 1
        if reason is not None:
            unfollowed[reason] = unfollowed.get(reason, 0) + 1
        follower.wrong = reason


def _capacity(figures: dict[str, Any]) -> int | None:
    """Return the blocks that an instance has, where it says."""
    return int(figures.get("total_kv_blocks") or 0) or None
