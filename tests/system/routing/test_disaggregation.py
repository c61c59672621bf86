"""Prefill and decode pools that come and go under traffic: processes on a real etcd and NATS, every answer exact."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]
SEEDS = range(12)
TRANSFER = {"kv_bytes_per_token": 10_000, "kv_transfer_bandwidth": 0.1, "speedup_ratio": 5}
FORMS: dict[str, dict[str, Any]] = {"handed over": TRANSFER, "met": {**TRANSFER, "bootstrap_port": 0}}
REMOTE, FALLBACKS = "model_remote_prefills_total", "model_prefill_fallbacks_total"
forms = pytest.mark.parametrize("form", FORMS)


def mockers(stack: Any, role: str, name: str = "", count: int = 1, **arguments: Any) -> Any:
    """A process with so many workers of that role."""
    told = json.dumps({"disaggregation_mode": role, "num_gpu_blocks": 2048, **arguments})
    flags = ("--num-workers", str(count), "--engine-args", told, "--graceful-shutdown-timeout-secs", "20")
    return stack.worker(name or role, "mocker", *flags, component=role)


class Clients:
    """They ask one frontend, and know what each answer has to be."""

    def __init__(self, url: str, client: httpx.AsyncClient, size: int) -> None:
        self._url, self._client, self._size = url, client, size
        self._expected: dict[int, str] = {}
        self.done = 0
        self.wrong: list[Any] = []
        self.prefills: list[int] = []
        """The instances that computed the prompts, of the answers in the order in which they came."""
        self._going = True

    async def ask(self, seed: int) -> str:
        """The text of one answer; its prompt is as long as the seed says."""
        body = {
            "model": "m", "prompt": f"{seed} " * (10 + 5 * seed), "seed": seed, "max_tokens": self._size,
            "ignore_eos": True, "nvext": {"extra_fields": ["worker_id"]},
        }  # fmt: skip
        answer = await self._client.post(f"{self._url}/v1/completions", json=body)
        if answer.status_code != 200:
            return f"{answer.status_code} {answer.text}"
        said = answer.json()
        self.prefills.append(said["nvext"]["worker_id"]["prefill_worker_id"])
        return str(said["choices"][0]["text"])

    async def learn(self) -> None:
        """What is right, while nothing breaks."""
        texts = await asyncio.gather(*(self.ask(seed) for seed in SEEDS))
        assert len(set(texts)) == len(SEEDS)
        assert {len(text) for text in texts} == {self._size}
        self._expected = dict(zip(SEEDS, texts, strict=True))

    async def go_on(self, first: int) -> None:
        """One request after the other, until the end of `traffic`."""
        seed = first
        while self._going:
            text = await self.ask(seed)
            if text != self._expected[seed]:
                self.wrong.append((seed, text))
            self.done += 1
            seed = SEEDS[(seed + 1) % len(SEEDS)]

    async def more(self, count: int) -> None:
        """Wait until so many more have been answered."""
        wanted = self.done + count
        await until("answers come", lambda: self.done >= wanted or self.wrong, 60)

    async def metric(self, name: str) -> float:
        text = (await self._client.get(f"{self._url}/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == f"dynamo_frontend_{name}")

    async def grows(self, name: str, by: float = 1) -> None:
        """Wait until a counter has grown from now on."""
        await self.reaches(name, await self.metric(name) + by)

    async def reaches(self, name: str, wanted: float) -> None:
        """Wait until a counter is there."""
        async with asyncio.timeout(60):
            while await self.metric(name) < wanted:
                await self.more(1)

    def stop(self) -> None:
        self._going = False


@contextlib.asynccontextmanager
async def traffic(url: str, size: int = 24, at_once: int = 6) -> AsyncIterator[Clients]:
    """Requests all the time; at the end none has failed, and each answer is what it has to be."""
    async with httpx.AsyncClient(timeout=60) as client:
        clients = Clients(url, client, size)
        await clients.learn()
        tasks = [asyncio.create_task(clients.go_on(first)) for first in SEEDS[:at_once]]
        try:
            yield clients
            clients.stop()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert clients.wrong == []


@forms
async def test_the_whole_prefill_pool_is_lost_and_comes_back(stack: Any, form: str) -> None:
    """SIGKILL of all of it: decode takes over, no request fails; then prompts are computed there again."""
    prefill, decode = mockers(stack, "prefill", count=2, **FORMS[form]), mockers(stack, "decode", count=2)
    frontend = stack.frontend()
    for one in (prefill, decode):
        one.ready_line()
    frontend.wait_for(instances=2)

    async with traffic(frontend.url) as clients:
        await clients.grows(REMOTE, 6)
        prefill.kill()
        await clients.reaches(FALLBACKS, 1)
        await clients.more(20)
        prefill.restart()
        await clients.grows(REMOTE, 6)
        fallbacks = await clients.metric(FALLBACKS)
        await clients.grows(REMOTE, 20)
        assert await clients.metric(FALLBACKS) == fallbacks


@forms
async def test_a_decode_worker_is_lost(stack: Any, form: str) -> None:
    """SIGKILL with answers under way: they go on at the other one, their prompts computed by the prefill worker."""
    prefill = mockers(stack, "prefill", **FORMS[form])
    decodes = [mockers(stack, "decode", f"decode-{n}", decode_speedup_ratio=2) for n in range(2)]
    frontend = stack.frontend("--migration-limit", "3")
    for one in (prefill, *decodes):
        one.ready_line()
    frontend.wait_for(instances=2)

    async with traffic(frontend.url, size=100, at_once=8) as clients:
        await clients.more(4)
        decodes[0].kill()
        await clients.reaches("model_migration_total", 1)
        await clients.more(20)
        fallbacks = await clients.metric(FALLBACKS)
        await clients.grows(REMOTE, 10)
        assert await clients.metric(FALLBACKS) == fallbacks


@forms
async def test_a_prefill_worker_that_comes_is_used_and_one_that_leaves_is_not(stack: Any, form: str) -> None:
    """First none, then one, then two, then the later one alone: nobody waits for any of it, and nothing fails."""
    decode = mockers(stack, "decode", count=2)
    frontend = stack.frontend()
    decode.ready_line()
    frontend.wait_for(instances=2)

    async with traffic(frontend.url) as clients:
        assert await clients.metric(REMOTE) == 0
        decoders = set(clients.prefills)
        first = mockers(stack, "prefill", "first", **FORMS[form])
        await until("the first one computes", lambda: set(clients.prefills) - decoders, 60)
        (one,) = set(clients.prefills) - decoders
        mockers(stack, "prefill", "second", **FORMS[form])
        await until("the second one computes", lambda: len(set(clients.prefills) - decoders) == 2, 60)
        (other,) = set(clients.prefills) - decoders - {one}
        assert await asyncio.to_thread(first.stop) == 0
        await clients.more(8)  # what it had computed before it went
        del clients.prefills[:]
        await clients.more(20)
        assert set(clients.prefills) == {other}
        assert await clients.metric(FALLBACKS) == 0
