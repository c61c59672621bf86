"""`python -m dynamo.router`: flags, and endpoints over memory. tests/system/routing/test_router.py has the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import click
import pytest
from tests.waiting import until

from dynamo.llm import KvEventPublisher, KvRouter
from dynamo.router.main import ENDPOINTS, make_command, serving
from dynamo.router.settings import RouterSettings
from dynamo.runtime import Context, DistributedRuntime, InvalidArgument, MemoryWorld
from dynamo.runtime.client import Client
from dynamo.runtime.process.settings import parse

BLOCK = 4
WORKERS = "ns.backend.generate"
FLAGS = ["--endpoint", WORKERS, "--router-block-size", str(BLOCK)]


def test_defaults_are_those_of_nvidia_dynamo() -> None:
    """But for replica sync, which our frontends have on as well."""
    settings = parse(RouterSettings, ["--endpoint", WORKERS])
    config = settings.config()
    assert (settings.router_block_size, config.use_kv_events, config.router_ttl_secs) == (128, True, 120.0)
    assert (config.overlap_score_credit, config.prefill_load_scale, config.router_temperature) == (1.0, 1.0, 0.0)
    assert config.router_replica_sync
    assert str(settings.served("generate")) == "ns.router.generate"
    assert str(parse(RouterSettings, ["--endpoint", WORKERS, "--namespace", "b"]).served("x")) == "b.router.x"


def test_older_names() -> None:
    settings = parse(
        RouterSettings,
        [
            "--endpoint", WORKERS, "--block-size", "64", "--kv-overlap-score-weight", "2", "--no-kv-events",
            "--router-ttl", "5", "--no-track-active-blocks",
        ],
    )  # fmt: skip
    config = settings.config()
    assert (settings.router_block_size, config.prefill_load_scale, config.router_ttl_secs) == (64, 2.0, 5.0)
    assert not config.use_kv_events
    assert not config.router_track_active_blocks


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--endpoint"), (["--endpoint", "a.b"], "namespace.component.endpoint"),
        ([*FLAGS, "--block-size", "0"], "--router-block-size"),
        ([*FLAGS, "--router-temperature", "-1"], "not negative"),
        ([*FLAGS, "--namespace", "a.b"], "namespace 'a.b'"), ([*FLAGS, "--system-port", "70000"], "--system-port"),
    ],
)  # fmt: skip
def test_bad_flags_are_one_sentence(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_command().main(flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(click.UsageError):
        parse(RouterSettings, [*FLAGS, "--serve-indexer"])


class Site:
    """A worker that has two blocks cached, the router in front of it, and who asks the router's endpoints."""

    def __init__(self, worker: DistributedRuntime, router: KvRouter, clients: dict[str, Client]) -> None:
        self.worker, self.router, self._clients = worker, router, clients
        self.asked: list[Any] = []
        """What the worker was sent."""

    async def ask(self, name: str, request: Any) -> list[Any]:
        return [item async for item in self._clients[name].random(request, annotated=False)]


@asynccontextmanager
async def deployed() -> AsyncIterator[Site]:
    world = MemoryWorld()
    worker, runtime, caller = [await DistributedRuntime.in_memory(world) for _ in range(3)]
    publisher = KvEventPublisher(worker.endpoint(WORKERS), None, BLOCK)

    async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
        site.asked.append(request)
        yield 1
        yield {"token_ids": [2], "finish_reason": "stop"}

    serves = asyncio.create_task(worker.endpoint(WORKERS).serve_endpoint(generate))
    async with serving(runtime, parse(RouterSettings, FLAGS)) as router:
        site = Site(worker, router, {n: await caller.endpoint(f"ns.router.{n}").client() for n in ENDPOINTS})
        for client in site._clients.values():
            await client.wait_for_instances(5)
        await until("it is followed", lambda: router.counts.counters["model_kv_snapshots_total"])
        publisher.publish_stored(list(range(8)), [4, 4], [1, 2])
        await until("its blocks are known", lambda: len(router.router.index))
        yield site
    for part in (caller, runtime, worker):
        await part.shutdown(0)
    await serves


def test_the_endpoints() -> None:
    """What is asked of each in each form, and what is refused; the worker sees the request as it was sent."""

    async def main() -> None:
        async with deployed() as site:
            tokens, worker = list(range(12)), site.worker.id
            assert await site.ask("best_worker_id", tokens) == [worker]
            assert await site.ask("best_worker_id", {"token_ids": tokens}) == [worker]
            (scores,) = await site.ask("get_overlap_scores", {"token_ids": tokens})
            assert scores["workers"][0] == {
                "worker_id": worker, "dp_rank": 0, "device_blocks": 2, "host_pinned_blocks": 0, "disk_blocks": 0,
                "host_pinned_extension_blocks": 0, "disk_extension_blocks": 0, "shared_beyond_device_blocks": 0,
            }  # fmt: skip
            request = {"token_ids": tokens, "model": "m", "anything": {"else": 1}}
            said = await site.ask("generate", request)
            assert said == [{"token_ids": [1]}, {"token_ids": [2], "finish_reason": "stop"}]
            assert site.asked == [request]
            for name in ENDPOINTS:
                with pytest.raises(InvalidArgument, match="token_ids"):
                    await site.ask(name, {"x": 1})
            with pytest.raises(InvalidArgument, match="data-parallel rank"):
                await site.ask("generate", {"token_ids": tokens, "dp_rank": 3})
            assert len(site.router.router.activity) == 0

    asyncio.run(asyncio.wait_for(main(), 60))
