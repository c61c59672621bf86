"""A user's worker whose engine has KV blocks of another size than it registers: `wrong_blocks.py NAMESPACE`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from dynamo.llm import KvEventPublisher, ModelInput, ModelType, register_model
from dynamo.runtime import DistributedRuntime


async def generate(request: Any) -> AsyncIterator[Any]:
    """Answer with one token."""
    yield {"token_ids": [65], "finish_reason": "stop"}


async def main() -> None:
    """Serve until told to end."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "etcd", "nats")
    endpoint = runtime.endpoint(f"{sys.argv[1]}.user.generate")
    await register_model(ModelInput.Tokens, ModelType.Completions, endpoint, "", "wrong", kv_cache_block_size=16)
    KvEventPublisher(endpoint, kv_block_size=32)
    await endpoint.serve_endpoint(generate)


asyncio.run(main())
