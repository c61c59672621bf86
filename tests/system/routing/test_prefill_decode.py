"""Prefill and decode mockers behind a frontend, on a real etcd and NATS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.system.routing.kv_deployment import BLOCK, Deployment, run, until

from dynamo.runtime import NatsConfig, RuntimeConfig

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]
TRANSFER = {"kv_bytes_per_token": 1000, "kv_transfer_bandwidth": 1.0}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    yield server
    server.kill()


FORMS = {"handed over": {}, "met": {"bootstrap_port": 0}}


@pytest.mark.parametrize(("mode", "form"), [("kv", "handed over"), ("round-robin", "handed over"), ("kv", "met")])
def test_prompts_are_computed_in_one_pool_and_decoded_in_the_other(
    etcd_server: EtcdServer, nats: NatsServer, mode: str, form: str
) -> None:  # fmt: skip
    """In kv mode a prompt goes back to the prefill worker that has it; all that was kept is taken; a pool may go."""

    async def case(deployment: Deployment) -> None:
        prefills = [
            await deployment.worker(256, component="prefill", disaggregation_mode="prefill", **TRANSFER, **FORMS[form])
            for _ in range(2)
        ]
        decodes = [await deployment.worker(256, disaggregation_mode="decode") for _ in range(2)]
        front = await deployment.frontend(mode)
        await until("both prefill workers are known", lambda: _seats(front) == 2)
        prompts = [[100 * number] * 6 * BLOCK for number in range(1, 7)]
        for _ in range(2):
            hits = await asyncio.gather(*(front.ask(prompt, 5) for prompt in prompts))
            await until("all is taken", lambda: not any(prefill.engine.ranks[0].scheduler.held for prefill in prefills))
            await until("the index follows", lambda: mode != "kv" or _follows(front, prefills))
        assert mode != "kv" or hits == [6 * BLOCK - 1] * 6
        computed = [len(prefill.engine.kv_names()) for prefill in prefills]
        assert min(computed) > 0
        assert (front.count("model_prefill_fallbacks_total"), front.count("model_remote_prefills_total")) == (0, 12)
        assert all(entry.engine.load().used_kv_blocks == 0 for entry in (*prefills, *decodes))
        for item in prefills:
            await item.runtime.shutdown(0)
        await until("they are gone", lambda: front.services.pool.prefills.of(front.models) is None)
        assert await front.ask([7] * BLOCK, 3) == 0

    config = RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,)))
    run(case, config)


@pytest.mark.parametrize("form", FORMS)
def test_a_transfer_shows_in_the_time_to_the_first_token(
    etcd_server: EtcdServer, nats: NatsServer, form: str
) -> None:  # fmt: skip
    """24 tokens of 1 MB over 100 MB/s: the one token of the answer takes 240 ms and the computation, in both forms."""

    async def case(deployment: Deployment) -> None:
        slow = {"kv_bytes_per_token": 1_000_000, "kv_transfer_bandwidth": 0.1}
        await deployment.worker(64, 1.0, "prefill", disaggregation_mode="prefill", **slow, **FORMS[form])
        await deployment.worker(64, disaggregation_mode="decode")
        front = await deployment.frontend("round-robin")
        await until("the prefill worker is known", lambda: _seats(front) == 1)
        began = time.monotonic()
        await front.ask([1] * 24)
        assert time.monotonic() - began >= 0.24
        assert front.count("model_remote_prefills_total") == 1

    run(case, RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,))))


@pytest.mark.parametrize("form", FORMS)
def test_a_prefill_worker_that_leaves_gives_first_what_it_has(
    etcd_server: EtcdServer, nats: NatsServer, form: str
) -> None:  # fmt: skip
    """Prompts that it is computing or that are on their way: it goes when they are there, and nobody computes twice."""

    async def case(deployment: Deployment) -> None:
        slow = {"kv_bytes_per_token": 1_000_000, "kv_transfer_bandwidth": 0.1}
        prefill = await deployment.worker(64, 1.0, "prefill", disaggregation_mode="prefill", **slow, **FORMS[form])
        await deployment.worker(64, disaggregation_mode="decode")
        front = await deployment.frontend("round-robin")
        await until("the prefill worker is known", lambda: _seats(front) == 1)
        answers = [front.start([number] * 24, 3) for number in range(4)]
        await until("it is at work", lambda: prefill.engine.load().running)
        await prefill.serving.stop(20)
        await asyncio.gather(*(asyncio.wait_for(answer.done, 30) for answer in answers))
        assert (front.count("model_prefill_fallbacks_total"), front.count("model_remote_prefills_total")) == (0, 4)

    run(case, RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,))))


def test_the_next_turn_stays_where_its_beginning_is(etcd_server: EtcdServer, nats: NatsServer) -> None:
    """Conditional disaggregation, by the decode workers' own events: a transfer fills their caches, too."""

    async def case(deployment: Deployment) -> None:
        await deployment.worker(64, component="prefill", disaggregation_mode="prefill", **TRANSFER)
        for _ in range(2):
            await deployment.worker(64, disaggregation_mode="decode")
        front = await deployment.frontend(router_conditional_disagg=True)
        await until("the prefill worker is known", lambda: _seats(front) == 1)
        turn = [3] * 6 * BLOCK
        assert await front.ask(turn) == 0
        await deployment.settle()
        assert await front.ask(turn + [4] * BLOCK) == 6 * BLOCK
        assert await front.ask(turn + [5] * 20 * BLOCK) == 6 * BLOCK  # that much more is not for a decode worker
        names = ("model_remote_prefills_total", "model_local_prefills_total", "model_prefill_fallbacks_total")
        assert [front.count(name) for name in names] == [2, 1, 0]

    run(case, RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,))))


def _seats(front: Any) -> int:
    result = front.services.pool.prefills.of(front.models)
    return 0 if result is None else len(result.workers)


def _follows(front: Any, prefills: list[Any]) -> bool:
    from dynamo.llm.kv.index import Rank

    routing = front.services.pool.prefills.of(front.models).kv
    return all(
        set(routing.router.index.blocks_of(Rank(prefill.id))) == prefill.engine.kv_names() for prefill in prefills
    )
