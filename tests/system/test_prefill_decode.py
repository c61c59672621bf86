"""Prefill and decode mockers behind a frontend, on a real etcd and NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures_etcd import EtcdServer, etcd_server  # noqa: F401
from tests.fixtures_nats import NatsServer
from tests.system.kv_deployment import BLOCK, Deployment, run, until

from dynamo.runtime import NatsConfig, RuntimeConfig

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]
TRANSFER = {"kv_bytes_per_token": 1000, "kv_transfer_bandwidth": 1.0}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.kill()


@pytest.mark.parametrize("mode", ["kv", "round-robin"])
def test_prompts_are_computed_in_one_pool_and_decoded_in_the_other(
    etcd_server: EtcdServer, nats: NatsServer, mode: str  # noqa: F811
) -> None:  # fmt: skip
    """In kv mode a prompt goes back to the prefill worker that has it; all that was kept is taken; a pool may go."""

    async def case(deployment: Deployment) -> None:
        prefills = [
            await deployment.worker(256, component="prefill", disaggregation_mode="prefill", **TRANSFER)
            for _ in range(2)
        ]
        decodes = [await deployment.worker(256, disaggregation_mode="decode") for _ in range(2)]
        front = await deployment.frontend(mode)
        await until("both prefill workers are known", lambda: _seats(front) == 2)
        prompts = [[100 * number] * 6 * BLOCK for number in range(1, 7)]
        for _ in range(2):
            hits = await asyncio.gather(*(front.ask(prompt, 5) for prompt in prompts))
            await until("all is taken", lambda: not any(one.engine.ranks[0].scheduler.held for one in prefills))
            await until("the index follows", lambda: mode != "kv" or _follows(front, prefills))
        assert mode != "kv" or hits == [6 * BLOCK - 1] * 6
        computed = [len(one.engine.kv_names()) for one in prefills]
        assert min(computed) > 0
        assert front.count("model_prefill_fallbacks_total") == 0
        assert all(one.engine.load().used_kv_blocks == 0 for one in (*prefills, *decodes))
        for one in prefills:
            await one.runtime.shutdown(0)
        await until("they are gone", lambda: front.services.pool.prefills.of(front.models) is None)
        assert await front.ask([7] * BLOCK, 3) == 0

    config = RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,)))
    run(case, config)


def _seats(front: Any) -> int:
    found = front.services.pool.prefills.of(front.models)
    return 0 if found is None else len(found.seats)


def _follows(front: Any, prefills: list[Any]) -> bool:
    from dynamo.llm.kv.index import Rank

    routing = front.services.pool.prefills.of(front.models).kv
    return all(set(routing.router.index.blocks_of(Rank(one.id))) == one.engine.kv_names() for one in prefills)
