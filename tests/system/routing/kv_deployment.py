"""Frontends and mock workers in one process, over a real etcd and NATS: their insides can be compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests import waiting

from dynamo.frontend.assembly import frontend
from dynamo.frontend.generation.choice import Choice
from dynamo.frontend.generation.request_scope import RequestScope
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services
from dynamo.frontend.settings import FrontendSettings
from dynamo.llm import open_model
from dynamo.llm.kv.active_requests import Load
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import KvScheduler
from dynamo.llm.protocols import PreprocessedRequest, RoutingHints, StopConditions
from dynamo.runtime import DistributedRuntime, RuntimeConfig
from dynamo.runtime.context import Context
from dynamo.runtime.names import new_id
from dynamo.runtime.process.settings import build
from dynamo.worker.engines.mocker.engine import Mocker
from dynamo.worker.instance.serving import Serving, serve_engine
from dynamo.worker.settings import WorkerSettings

BLOCK = 4


async def until(what: str, check: Callable[[], Any], within: float = 20.0) -> None:
    """As `waiting.until`, with the patience that real servers need."""
    await waiting.until(what, check, within)


class Answer:
    """What one request brought; a `generation.Listener`."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.choice: Choice

    def text(self, choice: Choice, text: str) -> None:
        """Nobody reads it."""

    def tokens(self, choice: Choice, text: str, ids: list[int], offsets: list[int], extras: Any) -> None:
        """Nobody reads them."""

    def finished(self, choice: Choice) -> None:
        self.done.set_result(None)

    def failed(self, choice: Choice, error: Exception) -> None:
        self.done.set_exception(error)


class Front:
    """A frontend without its HTTP server."""

    def __init__(self, services: Services) -> None:
        self.services = services

    @property
    def models(self) -> ModelSet:
        return self.services.pool.find("m")

    @property
    def instances(self) -> int:
        return sum(len(endpoint.workers) for endpoint in self.services.pool.served())

    def start(self, tokens: list[int], max_tokens: int = 1, salt: str | None = None) -> Answer:
        """Send a request."""
        request = PreprocessedRequest(
            model="m", token_ids=tokens, stop_conditions=StopConditions(max_tokens=max_tokens, ignore_eos=True),
            routing=None if salt is None else RoutingHints(cache_salt=salt),
        )  # fmt: skip
        meter = self.services.metrics.meter("m")
        scope = RequestScope(
            self.models, self.services.opener, Context(), meter, self.services.clock,
            prefills=self.services.pool.prefills,
        )  # fmt: skip
        answer = Answer()
        answer.choice = Choice(0, request, scope, answer)
        answer.choice.start()
        return answer

    async def ask(self, tokens: list[int], max_tokens: int = 1, salt: str | None = None) -> int:
        """Send a request and wait; how many tokens of its prompt were cached."""
        answer = self.start(tokens, max_tokens, salt)
        await asyncio.wait_for(answer.done, 30)
        return answer.choice.cached

    @property
    def router(self) -> KvScheduler:
        kv = self.models.kv
        assert kv is not None
        return kv.router

    def holds(self, instance: int, dp_rank: int = 0) -> set[int]:
        """What its index says of one worker's rank."""
        return set(self.router.index.blocks_of(Rank(instance, dp_rank)))

    def load(self, instance: int) -> Load:
        """What it thinks that a worker has to do."""
        return self.router.activity.load(Rank(instance))

    def count(self, counter: str) -> float:
        return self.services.metrics.meter("m").counters[counter]


class Worker:
    """A mock engine, served."""

    def __init__(self, runtime: DistributedRuntime, engine: Mocker, serving: Serving) -> None:
        self.runtime, self.engine, self.serving = runtime, engine, serving

    @property
    def id(self) -> int:
        return self.runtime.id


class Deployment:
    """Makes them; `close` ends all."""

    def __init__(self, config: RuntimeConfig, namespace: str = "") -> None:
        self.config, self.namespace = config, namespace or f"t{new_id():x}"
        self._stack = contextlib.AsyncExitStack()
        self.workers: list[Worker] = []
        self.fronts: list[Front] = []

    async def _runtime(self) -> DistributedRuntime:
        runtime = await DistributedRuntime.create(self.config)
        self._stack.push_async_callback(runtime.shutdown, 0)
        return runtime

    async def worker(
        self, blocks: int = 64, speedup: float = 0, component: str = "backend", **arguments: Any
    ) -> Worker:
        settings = WorkerSettings(
            engine="mocker", model_name="m", endpoint=f"dyn://{self.namespace}.{component}.generate",
            kv_cache_block_size=BLOCK,
            engine_args=json.dumps(
                {"speedup_ratio": speedup, "num_gpu_blocks": blocks, "max_num_seqs": 8, **arguments}
            ),
        )  # fmt: skip
        runtime, model = await self._runtime(), open_model(None, name="m")
        engine = Mocker(settings, model)
        serving = await serve_engine(runtime, engine, model, settings)
        self._stack.push_async_callback(serving.stop, 0)
        made = Worker(runtime, engine, serving)
        if engine.role != "prefill":
            self.workers.append(made)
        return made

    async def frontend(self, mode: str = "kv", **options: Any) -> Front:
        """Ready when this returns: it can send to every worker that is there. `options`: more settings."""
        settings = build(FrontendSettings, namespace=self.namespace, router_mode=mode, **options)
        services = await self._stack.enter_async_context(frontend(await self._runtime(), settings))
        front = Front(services)
        await until("the frontend knows all workers", lambda: front.instances >= len(self.workers))
        self.fronts.append(front)
        return front

    def agree(self, front: Front) -> bool:
        """Its index equals the workers' own caches, block by block."""
        return all(
            front.holds(worker.id, rank) == worker.engine.kv_names(rank)
            for worker in self.workers
            for rank in range(len(worker.engine.ranks))
        )

    async def settle(self, within: float = 20.0) -> None:
        """Wait until all agree."""
        for number, front in enumerate(self.fronts):
            await until(f"frontend {number} knows what is cached", lambda front=front: self.agree(front), within)  # type: ignore[misc]

    async def load(self, requests: int, seed: int, at_once: int = 16) -> None:
        """Send requests through all frontends in turn: prompts that share beginnings, answers of a few tokens, some
        of them given up."""
        random = Random(seed)
        free = asyncio.Semaphore(at_once)

        async def one(front: Front, tokens: list[int], wanted: int, patience: int) -> None:
            async with free:
                answer = front.start(tokens, wanted)
                if not patience:
                    await asyncio.sleep(0)
                    answer.choice.cancel()
                else:
                    await asyncio.wait_for(answer.done, 30)

        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                chat, turns = random.randrange(40), random.randrange(1, 12)
                tokens = [chat + 1, 7, *range(turns * BLOCK), random.randrange(1000)]
                front = self.fronts[number % len(self.fronts)]
                group.create_task(one(front, tokens, random.randrange(1, 9), random.randrange(20)))
                if number % 100 == 0:
                    await asyncio.sleep(0)

    async def close(self) -> None:
        await self._stack.aclose()


def run(case: Callable[[Deployment], Any], config: RuntimeConfig, within: float = 120.0, namespace: str = "") -> None:
    """Play `case` in a deployment of its own."""

    async def main() -> None:
        deployment = Deployment(config, namespace)
        try:
            async with asyncio.timeout(within):
                await case(deployment)
        finally:
            await deployment.close()

    asyncio.run(main())
