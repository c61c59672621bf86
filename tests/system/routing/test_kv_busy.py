"""Thresholds and queue of one frontend see what another one sends, on a real etcd and NATS."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.system.routing.kv_deployment import BLOCK, Deployment, Front, run, until

from dynamo.frontend.errors import ApiError
from dynamo.frontend.routing.admission_gate import QueuedRequest
from dynamo.runtime import NatsConfig, RuntimeConfig

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

Play = Callable[[Callable[[Deployment], Awaitable[None]]], None]
BLOCKS = 64
FOREVER = 100_000


@pytest.fixture
def play(etcd_server: EtcdServer, tmp_path: Path) -> Iterator[Play]:
    nats = NatsServer(tmp_path)
    config = RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,)))
    yield lambda case: run(case, config)
    nats.kill()


def visit(front: Front) -> list[str]:
    """Come to the gate of a frontend; the result hears what becomes of it."""
    said: list[str] = []

    def refuse(error: Exception) -> None:
        assert isinstance(error, ApiError)
        said.append(error.code)

    gate = front.models.gate
    assert gate is not None
    gate.enter(QueuedRequest(lambda: said.append("went"), refuse))
    return said


def test_a_worker_is_busy_with_what_others_sent(play: Play) -> None:
    """Two thirds of its blocks are in use by a request of the other frontend, until that ends."""

    async def case(deployment: Deployment) -> None:
        worker = await deployment.worker(BLOCKS, speedup=1.0)
        first, other = [await deployment.frontend(active_decode_blocks_threshold=0.5) for _ in range(2)]
        long = first.start(list(range(40 * BLOCK)), FOREVER)
        await until("the other knows", lambda: other.load(worker.id).blocks == 40)
        assert visit(other) == visit(first) == ["busy"]
        long.choice.cancel()
        await until("the other knows", lambda: other.load(worker.id).blocks == 0)
        assert visit(other) == ["went"]

    play(case)


def test_who_waits_goes_when_the_other_frontend_s_prefill_is_over(play: Play) -> None:
    """Nobody tells the queue of it: it looks."""

    async def case(deployment: Deployment) -> None:
        worker = await deployment.worker(BLOCKS, speedup=0.02)  # a prefill of a second or more
        frontend = await deployment.frontend()
        other = await deployment.frontend(router_queue_threshold=0.01)
        long = frontend.start(list(range(40 * BLOCK)), FOREVER)
        await until("the other knows", lambda: other.load(worker.id).prefill_tokens == 40 * BLOCK)
        said = visit(other)
        assert said == []
        await until("it goes", lambda: said == ["went"])
        assert other.load(worker.id).prefill_tokens == 0
        long.choice.cancel()

    play(case)
