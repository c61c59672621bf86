"""`load_metrics` beside `generate`: any client may ask what a worker does now, as programs of 2025 do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dynamo.llm import open_model
from dynamo.runtime.http.system_server import runtime_health
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import EngineFacts
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.load_endpoint import figures
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

ARGUMENTS = '{"max_num_seqs": 3, "num_gpu_blocks": 50, "dp_size": 2, "speedup_ratio": 0}'


async def asked(runtime: DistributedRuntime, path: str) -> Any:
    """The answer of an endpoint to an empty request."""
    client = await runtime.endpoint(path).client()
    await client.wait_for_instances()
    async with asyncio.timeout(10):
        return [item async for item in await client.generate({}, annotated=False)]


async def served(endpoint: str, load_metrics: bool) -> tuple[list[str], Any]:
    """The endpoints that a worker has, and what `load_metrics` answers."""
    settings = WorkerSettings(
        engine="mocker", engine_args=ARGUMENTS, endpoint=f"dyn://{endpoint}", load_metrics=load_metrics
    )
    model = open_model(None, name="m")
    async with await DistributedRuntime.in_memory() as runtime:
        serving = await serve_engine(runtime, create_engine(settings, model), model, settings)
        try:
            names = sorted(runtime_health(runtime).endpoints)
            return names, await asked(runtime, "ns.backend.load_metrics") if load_metrics else None
        finally:
            await serving.stop(1)
            assert list(runtime.served) == [], "it leaves with its worker"


def test_it_answers_in_the_shape_of_its_age() -> None:
    """Slots and blocks of all ranks together, under NVIDIA Dynamo's names."""
    names, answers = asyncio.run(served("ns.backend.generate", load_metrics=True))
    assert names == ["generate", "load_metrics"]
    assert answers == [
        {
            "worker_stats": {
                "request_active_slots": 0, "request_total_slots": 6, "num_requests_waiting": 0,
                "data_parallel_rank": None,
            },
            "kv_stats": {
                "kv_active_blocks": 0, "kv_total_blocks": 100, "gpu_cache_usage_perc": 0.0,
                "gpu_prefix_cache_hit_rate": 0.0,
            },
            "spec_decode_stats": None,
        }
    ]  # fmt: skip


def test_it_is_there_where_it_is_asked_for() -> None:
    """A worker has it only when told."""
    assert asyncio.run(served("ns.backend.generate", load_metrics=False)) == (["generate"], None)


def test_an_endpoint_of_that_name_stays_the_users() -> None:
    """Who serves an engine as `load_metrics` gets the engine there."""
    settings = WorkerSettings(engine="mocker", endpoint="dyn://ns.backend.load_metrics", load_metrics=True)
    model = open_model(None, name="m")

    async def look() -> list[str]:
        async with await DistributedRuntime.in_memory() as runtime:
            serving = await serve_engine(runtime, create_engine(settings, model), model, settings)
            names = sorted(runtime_health(runtime).endpoints)
            await serving.stop(1)
            return names

    assert asyncio.run(look()) == ["load_metrics"]


@pytest.mark.parametrize("engine", ["echo_core", "echo_full"])
def test_engines_without_figures_say_nought(engine: str) -> None:
    """What an engine doesn't know is 0, not left out."""
    made = create_engine(WorkerSettings(engine=engine), open_model(None, name="m"))
    load = figures(made, EngineFacts())
    assert (load.worker_stats.request_total_slots, load.kv_stats.kv_total_blocks) == (0, 0)
