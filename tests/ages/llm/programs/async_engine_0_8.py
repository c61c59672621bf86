"""Late 2025 (0.4 to 0.9): an engine in vLLM's form, whose outputs grow; figures, KV events and a limit of migrations.

Arguments: model path, name, and `hangs` for an engine that goes silent after three tokens.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from dynamo.llm import (
    ForwardPassMetrics,
    KvEventPublisher,
    KvStats,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerMetricsPublisher,
    WorkerStats,
    register_llm,
)
from dynamo.runtime import Context, DistributedRuntime, dynamo_worker

BLOCK = 4


@dataclass
class Output:
    """What there is of an answer so far."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class AsyncEngine:
    """Answers a prompt with itself; each output holds all tokens so far."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def generate(self, prompt: list[int], request_id: str, most: int) -> AsyncIterator[Output]:
        output = Output()
        for at, token in enumerate(prompt[:most]):
            if at == 3 and "hangs" in sys.argv:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            output.token_ids.append(token)
            yield output
        output.finish_reason = "length" if len(prompt) > most else "stop"
        yield output

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


class Handler:
    def __init__(self, engine: AsyncEngine, events: KvEventPublisher) -> None:
        self.engine, self.events = engine, events

    async def generate(self, request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        prompt, answered, sent = request["token_ids"], request["answered_tokens"], 0
        prompt = prompt[: len(prompt) - answered]
        most = request["stop_conditions"]["max_tokens"] or 1 << 20
        async for output in self.engine.generate(prompt[answered:], context.id(), most):
            if context.is_stopped():
                self.engine.abort(context.id())
                break
            new, sent = output.token_ids[sent:], len(output.token_ids)
            yield {"token_ids": list(new)} | ({"finish_reason": output.finish_reason} if output.finish_reason else {})
        blocks = len(prompt) // BLOCK
        hashes = [hash((*prompt[: (at + 1) * BLOCK],)) & (1 << 62) - 1 for at in range(blocks)]
        self.events.publish_stored(1, prompt[: blocks * BLOCK], [BLOCK] * blocks, hashes, 0)


@dynamo_worker(static=False)
async def worker(runtime: DistributedRuntime) -> None:
    component = runtime.namespace("test").component("backend")
    endpoint = component.endpoint("generate")
    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = 1000, 8, 2048
    config.set_engine_specific("build", "of a test")
    await register_llm(
        ModelInput.Tokens, ModelType.Chat | ModelType.Completions, endpoint, sys.argv[1], sys.argv[2], 64, BLOCK, None,
        3, runtime_config=config, user_data={"tier": "test"},
    )  # fmt: skip
    events = KvEventPublisher(component, endpoint.lease_id(), BLOCK)
    metrics = WorkerMetricsPublisher()
    await metrics.create_endpoint(component)
    metrics.publish(ForwardPassMetrics(WorkerStats(1, 8, 2), KvStats(10, 1000, 0.01, 0.0)))
    await endpoint.serve_endpoint(Handler(AsyncEngine(), events).generate, metrics_labels=[("model", sys.argv[2])])


if __name__ == "__main__":
    asyncio.run(worker())
