"""Callers and workers on a bus that loses, delays, reorders and goes away at random, in simulated time."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import looptime
import pytest

from dynamo.runtime.context import Context
from dynamo.runtime.names import InstanceKey
from dynamo.runtime.request_plane.server import Incoming


class Talker:
    """A handler that sends counted items at random times; knows what it sent to whom."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.sent: dict[int, list[int]] = {}
        self.finished: set[int] = set()

    def __call__(self, incoming: Incoming) -> None:
        assert incoming.payload not in self.sent, "a request ran twice"
        self.sent[incoming.payload] = []
        self._next(incoming)

    def _next(self, incoming: Incoming) -> None:
        if not incoming.open:
            return
        sent = self.sent[incoming.payload]
        for _ in range(self._dice.randrange(3)):
            sent.append(len(sent))
            incoming.send(sent[-1])
        if self._dice.random() < 0.1:
            self.finished.add(incoming.payload)
            incoming.finish()
        else:
            pause = self._dice.choice([0.0, 0.01, 0.01, 0.4, 2.0])
            asyncio.get_running_loop().call_later(pause, self._next, incoming)


@dataclasses.dataclass
class Weather:
    """How bad the bus is."""

    loss: float = 0.0
    late: float = 0.0
    """Seconds of delay at most; each message its own, so they overtake each other."""
    outages: int = 0
    crash: bool = False


LOSSES = {"incomplete", "timeout", "unreachable", "worker_lost"}


async def run(world: Any, reader: Any, dice: random.Random, weather: Weather) -> None:
    fine = weather == Weather()
    loop = asyncio.get_running_loop()
    talkers = [Talker(dice), Talker(dice)]
    workers = [await world.worker(talker, clock=loop.time) for talker in talkers]
    caller = await world.caller(clock=loop.time)
    world.network.drop = lambda subject, data: dice.random() < weather.loss
    world.network.delay = lambda subject, data: dice.uniform(0, weather.late) if dice.random() < 0.3 else 0.0
    streams: list[tuple[Any, Any, int]] = []
    cancelled: set[int] = set()
    for number in range(60):
        which = dice.randrange(2)
        sink = reader()
        instance: InstanceKey = workers[which][1]
        limit = loop.time() + 20 if dice.random() < 0.2 else None
        call = caller.open(instance, number, context=Context(deadline=limit), on_item=sink.on_item, on_end=sink.on_end)
        streams.append((sink, call, which))
        await asyncio.sleep(dice.choice([0.0, 0.01, 0.2]))
        if dice.random() < 0.1:
            call.cancel()
            cancelled.add(number)
        if weather.outages and dice.random() < 0.05:
            weather.outages -= 1
            bus = world.buses[dice.randrange(3)]
            bus.disconnect()
            await asyncio.sleep(dice.uniform(0, 3))
            bus.reconnect()
        if weather.crash and number == 30:
            world.buses[0].crash()
    await asyncio.sleep(60)
    world.network.drop = None
    await asyncio.sleep(60)
    for number, (sink, _, which) in enumerate(streams):
        check(number, sink, talkers[which], number in cancelled)
    assert caller.active == 0
    for which, (server, _) in enumerate(workers):
        assert server.active == 0 or (weather.crash and which == 0)
    ends = {end.code for sink, _, _ in streams for end in sink.ends if end is not None}
    assert ends <= ({"deadline"} if fine else {"deadline", *LOSSES})
    await world.close()


def check(number: int, sink: Any, talker: Talker, cancelled: bool) -> None:
    """Ended once (or never, where it was cancelled before); what came is what was sent, or a beginning of it."""
    sent = talker.sent.get(number, [])
    assert len(sink.ends) == 1 or (cancelled and len(sink.ends) == 0), number
    assert sink.items == sent[: len(sink.items)]
    if sink.ends == [None]:
        assert number in talker.finished
        assert sink.items == sent


WEATHERS = {
    "fine": Weather(),
    "late": Weather(late=0.15),
    "lossy": Weather(loss=0.05),
    "lossy and late": Weather(loss=0.05, late=0.3),
    "storm": Weather(loss=0.3, late=1.0, outages=3),
    "outages": Weather(outages=5),
    "crash": Weather(late=0.05, crash=True),
}


@pytest.mark.parametrize("weather", WEATHERS.values(), ids=WEATHERS.keys())
@pytest.mark.parametrize("seed", range(6))
def test_every_stream_is_exact_or_ends_in_one_error(memory: Any, reader: Any, weather: Weather, seed: int) -> None:
    """60 streams on two workers: nothing wrong, nothing twice, nothing left open, on either side."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(run(memory, reader, random.Random(seed), dataclasses.replace(weather)))
