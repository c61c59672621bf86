"""The standalone router as a process between real etcd, NATS, mock workers and a program that calls it."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq.asyncio
from tests.waiting import until

from dynamo.llm import KvEventPublisher
from dynamo.runtime import Client, DistributedRuntime, EtcdConfig, NatsConfig, RuntimeConfig

pytestmark = [pytest.mark.servers, pytest.mark.processes, pytest.mark.timeout(180)]

BLOCK = 4
WORKER = ("--kv-cache-block-size", str(BLOCK), "--engine-args", '{"speedup_ratio": 0}')


class Deployment:
    """Two mockers, a router, and a client of each of its endpoints."""

    def __init__(self, stack: Any) -> None:
        self.workers = [stack.worker(f"worker{number}", "mocker", *WORKER) for number in range(2)]
        self.ids = {worker.ready_line()["instance"]: worker for worker in self.workers}
        argv = [sys.executable, "-m", "dynamo.router", "--endpoint", "test.backend.generate"]
        argv += ["--router-block-size", str(BLOCK), "--system-port", "0"]
        self.router = stack.start("router", argv, stack.env)
        self.ready = self.router.ready_line()
        self.config = RuntimeConfig(
            etcd=EtcdConfig(endpoints=(stack.env["ETCD_ENDPOINTS"],)),
            nats=NatsConfig(servers=(stack.env["NATS_SERVER"],)),
        )
        self.clients: dict[str, Client] = {}

    def play(self, case: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            runtime = await DistributedRuntime.create(self.config)
            try:
                for name in ("generate", "best_worker_id", "get_overlap_scores"):
                    self.clients[name] = await runtime.endpoint(f"test.router.{name}").client()
                    await self.clients[name].wait_for_instances(20)
                await case()
            finally:
                await runtime.shutdown(0)

        asyncio.run(asyncio.wait_for(main(), 120))

    async def ask(self, name: str, request: Any) -> list[Any]:
        return [item async for item in self.clients[name].random(request, annotated=False)]

    async def generate(self, tokens: list[int], count: int = 2) -> list[Any]:
        return await self.ask(
            "generate",
            {"model": "m", "token_ids": tokens, "stop_conditions": {"max_tokens": count, "ignore_eos": True}},
        )

    async def held(self, tokens: list[int]) -> dict[int, int]:
        """Blocks of a prompt by worker."""
        (scores,) = await self.ask("get_overlap_scores", {"token_ids": tokens})
        return {score["worker_id"]: score["device_blocks"] for score in scores["workers"]}

    async def until_held(self, tokens: list[int], blocks: int) -> int:
        """The one worker that holds that much of the prompt."""
        workers: list[int] = []

        async def known() -> bool:
            workers[:] = [worker for worker, count in (await self.held(tokens)).items() if count == blocks]
            return len(workers) == 1

        await until(f"one worker holds {blocks} blocks", known, 20)
        return workers[0]

    def metric(self, name: str) -> float:
        text = httpx.get(f"http://127.0.0.1:{self.ready['system_port']}/metrics", timeout=10).text
        (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(value)


def test_prompts_go_where_they_are_cached(stack: Any) -> None:
    """By the workers' own events; the questions say what then happens; a killed worker is gone from both."""
    site = Deployment(stack)

    async def case() -> None:
        homes: dict[int, list[int]] = {}
        while set(homes) != set(site.ids):  # idle workers are equal: chance decides
            prompt = [random.randrange(10**6) for _ in range(8 * BLOCK)]
            answer = await site.generate(prompt)
            assert [len(item["token_ids"]) for item in answer if item["token_ids"]] == [1, 1]
            assert answer[-1]["finish_reason"] == "length"
            homes[await site.until_held(prompt, 8)] = prompt
        for home, prompt in homes.items():
            assert await site.ask("best_worker_id", [*prompt, 1, 2]) == [home]
            again = await site.generate([*prompt, 1, 2])
            assert max(answer.get("cached_tokens", 0) for answer in again) == 8 * BLOCK
        assert site.metric("dynamo_router_kv_snapshots_total") == 2
        assert site.metric("dynamo_router_kv_gaps_total") == 0
        lost, prompt = homes.popitem()
        site.ids[lost].kill()
        answers = await asyncio.gather(*(site.generate([*prompt, 3]) for _ in range(4)))
        assert all(answer[-1]["finish_reason"] == "length" for answer in answers)
        assert await site.until_held(prompt, 8) != lost

    site.play(case)


def test_a_program_relays_its_engines_own_events(stack: Any, tmp_path: Path) -> None:
    """A worker written with `dynamo.llm`, its engine's ZMQ stream, NATS, the router process: the prompt goes there."""
    site = Deployment(stack)
    tokens = list(range(50, 50 + 6 * BLOCK))

    async def generate(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [99], "finish_reason": "stop"}

    async def case() -> None:
        runtime = await DistributedRuntime.create(site.config)
        context = zmq.asyncio.Context()
        engine = context.socket(zmq.XPUB)
        engine.bind(f"ipc://{tmp_path}/events")
        endpoint = runtime.endpoint("test.backend.generate")
        try:
            KvEventPublisher(endpoint, None, BLOCK, zmq_endpoint=f"ipc://{tmp_path}/events")
            serves = asyncio.create_task(endpoint.serve_endpoint(generate))
            await asyncio.wait_for(engine.recv(), 20)
            stored = {
                "type": "BlockStored", "block_hashes": [bytes([n]) * 32 for n in range(6)], "parent_block_hash": None,
                "token_ids": tokens, "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
            }  # fmt: skip
            await engine.send_multipart([b"", (0).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [stored], 0])])
            assert await site.until_held(tokens, 6) == runtime.id
            assert await site.ask("best_worker_id", tokens) == [runtime.id]
            assert await site.generate(tokens) == [{"token_ids": [99], "finish_reason": "stop"}]
            await engine.send_multipart(
                [b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([2.0, [{"type": "AllBlocksCleared"}], 0])]
            )

            async def forgotten() -> bool:
                return not (await site.held(tokens))[runtime.id]

            await until("the index has forgotten the blocks", forgotten, 20)
        finally:
            await runtime.shutdown(0)
            context.destroy(linger=0)
        await serves

    site.play(case)


def test_it_leaves_in_order(stack: Any) -> None:
    """SIGTERM: what runs ends well, nothing new comes, its records are gone, exit code 0."""
    site = Deployment(stack)

    async def case() -> None:
        assert await site.generate(list(range(20)))
        leaving = asyncio.create_task(asyncio.to_thread(site.router.stop))
        assert await leaving == 0
        await until("its instance is gone", lambda: not site.clients["generate"].instance_ids(), 20)

    site.play(case)
