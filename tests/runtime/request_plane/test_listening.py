"""Listening to subjects: once, wholly or not at all, and no longer than wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import new_id
from dynamo.runtime.request_plane.caller import Caller, Verdict
from dynamo.runtime.request_plane.server import from_generator
from dynamo.runtime.transport.bus import Message
from dynamo.runtime.transport.nats import NatsBus


async def count(request: int) -> AsyncIterator[int]:
    for number in range(request):
        yield number


async def test_a_namespace_is_listened_to_once(world: Any) -> None:
    """However many begin at the same time: a second subscription would bring every frame twice."""
    _, instance = await world.worker(from_generator(count))
    caller = Caller(bus := await world.bus(), new_id())
    subscribe, asked = bus.subscribe, []

    async def noting(subject: str, *rest: Any) -> Any:
        asked.append(subject)
        return await subscribe(subject, *rest)

    bus.subscribe = noting
    assert await asyncio.gather(*(caller.ping(instance) for _ in range(5))) == [Verdict.ALIVE] * 5
    assert len(asked) == len(set(asked)) == 2
    await caller.stop()
    await world.close()


async def test_a_bus_that_fails_in_the_middle_leaves_nothing(world: Any) -> None:
    """Who listened to one subject and not to the other listens to none, says so, and may try again."""
    _, instance = await world.worker(from_generator(count))
    caller = Caller(bus := await world.bus(), new_id())
    left: list[str] = []
    subscribe = bus.subscribe

    async def failing(subject: str, *rest: Any) -> Any:
        if left:
            raise CannotConnect("the bus is away")
        subscription = await subscribe(subject, *rest)
        unsubscribe = subscription.unsubscribe

        async def noting() -> None:
            left.append(subject)
            await unsubscribe()

        subscription.unsubscribe = noting
        left.append("")
        return subscription

    bus.subscribe = failing
    results = await asyncio.gather(*(caller.listen(world.namespace) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in results] == [CannotConnect] * 3
    assert len(left) == 2
    bus.subscribe = subscribe
    assert await caller.ping(instance) is Verdict.ALIVE
    await caller.stop()
    await world.close()


async def test_unsubscribing_while_the_server_goes(start_nats: Any, until: Any) -> None:
    """What was left isn't listened to again at the next connection, though nobody confirmed it."""
    server = start_nats()
    bus = NatsBus(NatsConfig(servers=(server.url,)))
    await bus.connect()
    got: list[Message] = []
    left = await bus.subscribe("a", got.append, lambda: None)
    kept = await bus.subscribe("b", got.append, lambda: None)
    server.kill()
    with pytest.raises(CannotConnect):
        await left.unsubscribe()
    await until("the loss is known", lambda: not bus.connected)
    server.start()
    await until("it is back", lambda: bus.connected)
    for subject in "ab":
        bus.publish(subject, b"x")
    await bus.flush()
    assert [message.subject for message in got] == ["b"]
    await kept.unsubscribe()
    await bus.close()
