"""What every bus promises: over memory and over a real NATS server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.runtime.errors import CannotConnect, InvalidArgument
from dynamo.runtime.transport.bus import Message


def ignore() -> None:
    """No loss is expected in these tests."""


async def listen(bus: Any, subject: str) -> tuple[list[Message], Any]:
    got: list[Message] = []
    return got, await bus.subscribe(subject, got.append, ignore)


async def test_messages_arrive_in_order(buses: Any, until: Any) -> None:
    """A subscription is active when `subscribe` returns; messages come whole and in order."""
    sender, receiver = await buses.bus(), await buses.bus()
    got, _ = await listen(receiver, f"{buses.namespace}.a")
    for number in range(1000):
        sender.publish(f"{buses.namespace}.a", b"%d\r\nMSG x 1 5\r\n" % number, "back" if number % 2 else "")
    await until("all messages", lambda: len(got) == 1000)
    assert [m.data for m in got] == [b"%d\r\nMSG x 1 5\r\n" % n for n in range(1000)]
    assert [m.reply for m in got[:2]] == ["", "back"]
    assert {m.subject for m in got} == {f"{buses.namespace}.a"}
    await buses.close()


async def test_a_star_stands_for_one_part(buses: Any, until: Any) -> None:
    """`a.*` hears `a.b` and `a.c`, not `a` nor `a.b.c`."""
    bus = await buses.bus()
    got, _ = await listen(bus, f"{buses.namespace}.*")
    for subject in ("", ".x.y", ".x", ".y"):
        bus.publish(buses.namespace + subject, subject.encode())
    await bus.flush()
    await until("both messages", lambda: len(got) >= 2)
    assert [m.data for m in got] == [b".x", b".y"]
    await buses.close()


async def test_nobody_listening_is_reported(buses: Any, until: Any) -> None:
    """A message with a reply subject that nobody hears comes back as `no_responders`; one without does not."""
    bus = await buses.bus()
    got, _ = await listen(bus, f"{buses.namespace}.r.*")
    bus.publish(f"{buses.namespace}.void", b"x")
    bus.publish(f"{buses.namespace}.void", b"x", f"{buses.namespace}.r.1")
    await until("the report", lambda: got)
    assert got == [Message(f"{buses.namespace}.r.1", b"", "", True)]
    await buses.close()


async def test_unsubscribed_is_silent(buses: Any, until: Any) -> None:
    """After `unsubscribe` returned nothing arrives, and the bus knows that nobody listens."""
    bus = await buses.bus()
    replies, _ = await listen(bus, f"{buses.namespace}.r.*")
    got, subscription = await listen(bus, f"{buses.namespace}.a")
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    bus.publish(f"{buses.namespace}.a", b"x", f"{buses.namespace}.r.1")
    await until("the report", lambda: replies)
    assert replies[0].no_responders
    assert got == []
    await buses.close()


async def test_empty_and_largest_messages_pass(buses: Any, until: Any) -> None:
    """0 bytes and `max_payload` bytes arrive; one more is refused at once."""
    sender, receiver = await buses.bus(), await buses.bus()
    got, _ = await listen(receiver, f"{buses.namespace}.a")
    largest = bytes(range(256)) * (sender.max_payload // 256)
    sender.publish(f"{buses.namespace}.a", b"")
    sender.publish(f"{buses.namespace}.a", largest)
    with pytest.raises(InvalidArgument, match="over the bus's limit"):
        sender.publish(f"{buses.namespace}.a", largest + b"x")
    sender.publish(f"{buses.namespace}.a", b"after")
    await until("three messages", lambda: len(got) == 3)
    assert [m.data for m in got] == [b"", largest, b"after"]
    await buses.close()


def test_a_listener_that_fails_loses_nothing_else(buses: Any, until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a listener is logged; later messages still come."""

    async def main() -> None:
        bus = await buses.bus()
        got: list[bytes] = []

        def listener(message: Message) -> None:
            if message.data == b"bad":
                raise KeyError("bug")
            got.append(message.data)

        await bus.subscribe(f"{buses.namespace}.a", listener, ignore)
        for data in (b"bad", b"good"):
            bus.publish(f"{buses.namespace}.a", data)
        await until("the second message", lambda: got == [b"good"])
        await buses.close()

    asyncio.run(main())
    assert "a listener of" in caplog.text


async def test_a_closed_bus_refuses(buses: Any) -> None:
    """Publishing and flushing raise `CannotConnect`; the state was told."""
    bus = await buses.bus()
    states: list[bool] = []
    bus.on_state(states.append)
    await buses.close()
    assert not bus.connected
    assert states == [False]
    with pytest.raises(CannotConnect):
        bus.publish("a", b"x")
    with pytest.raises(CannotConnect):
        await bus.flush()


async def test_messages_of_one_read_are_one_batch(buses: Any, until: Any) -> None:
    """What `call_soon` schedules at the first message runs after all messages that came with it."""
    sender, receiver = await buses.bus(), await buses.bus()
    seen: list[str] = []

    def listener(message: Message) -> None:
        if message.data == b"0":
            asyncio.get_running_loop().call_soon(seen.append, "batch")
        seen.append(message.data.decode())

    await receiver.subscribe(f"{buses.namespace}.a", listener, ignore)
    for number in range(10):
        sender.publish(f"{buses.namespace}.a", b"%d" % number)
    await until("all", lambda: len(seen) == 11)
    # NATS may bring them in two reads, but never one read in two batches.
    assert [s for s in seen if s != "batch"] == [str(n) for n in range(10)]
    assert seen[1] != "batch" or buses.server is not None
    await buses.close()
