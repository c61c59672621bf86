"""How long a bus tries to reach a server, without one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.transport import nats as module
from dynamo.runtime.transport.nats import NatsBus
from dynamo.runtime.transport.nats_dialling import dial_order


async def test_a_cancellation_that_a_dial_loses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start limit holds also where a dial is refused at the moment at which it ends."""
    bus = NatsBus(NatsConfig(servers=("nats://127.0.0.1:1",), start_limit=0.2))

    async def dial(server: str, limit: float) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise CannotConnect("refused") from None

    monkeypatch.setattr(bus, "_dial", dial)
    with pytest.raises(CannotConnect, match=r"within 0\.2 s"):
        await bus.connect()


@pytest.mark.parametrize(
    ("lost", "turn", "order"),
    [("", 0.0, "abc"), ("", 0.5, "bca"), ("", 0.99, "cab"), ("b", 0.5, "cab"), ("x", 0.0, "abc")],
)
def test_the_order_in_which_servers_are_tried(lost: str, turn: float, order: str) -> None:
    """From any place on, all of them, and the one that was just lost last."""
    assert dial_order(list("abc"), lost, turn) == list(order)
    assert dial_order([], lost, turn) == []


async def test_a_silent_server_is_not_waited_for_while_there_are_others(
    start_nats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node refuses nobody: after a moment the next server is tried."""
    monkeypatch.setattr(module, "dial_order", lambda servers, lost, turn: servers)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bus = NatsBus(NatsConfig(servers=(f"nats://127.0.0.1:{silent.getsockname()[1]}", start_nats().url)))
        began = asyncio.get_running_loop().time()
        await bus.connect()
        assert asyncio.get_running_loop().time() - began < module.DIAL - 1
        await bus.close()
