"""How long a bus tries to reach a server, without one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.transport.nats import NatsBus


async def test_a_cancellation_that_a_dial_loses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start limit holds also where a dial is refused at the moment at which it ends."""
    bus = NatsBus(NatsConfig(servers=("nats://127.0.0.1:1",), start_limit=0.2))

    async def dial(server: str) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise CannotConnect("refused") from None

    monkeypatch.setattr(bus, "_dial", dial)
    with pytest.raises(CannotConnect, match=r"within 0\.2 s"):
        await bus.connect()
