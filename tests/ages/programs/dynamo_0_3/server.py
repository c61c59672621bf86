"""As of autumn 2025: its logging, labels and probes, a context, signals of its own, two components in a namespace."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from dynamo.runtime import Context, DistributedRuntime, dynamo_worker
from dynamo.runtime.logging import configure_dynamo_logging

logger = logging.getLogger(__name__)
configure_dynamo_logging()


async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
    for number in range(request["count"]):
        if context.is_stopped():
            return
        yield {"number": number, "of": context.id()}
        await asyncio.sleep(request.get("pause", 0))


async def load_metrics(request: Any) -> AsyncIterator[dict[str, int]]:
    yield {"active": 0}


async def clear(request: Any) -> dict[str, str]:
    return {"status": "cleared"}


async def graceful_shutdown(runtime: DistributedRuntime) -> None:
    runtime.shutdown()


@dynamo_worker()
async def worker(runtime: DistributedRuntime) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asyncio.ensure_future(graceful_shutdown(runtime)))
    backend = runtime.namespace(sys.argv[1]).component("backend")
    prefill = runtime.namespace(sys.argv[1]).component("prefill")
    backend.create_service()
    labels = [("model", "demo")]
    print("serving", flush=True)
    try:
        await asyncio.gather(
            backend.endpoint("generate").serve_endpoint(
                generate, graceful_shutdown=True, metrics_labels=labels, health_check_payload={"count": 1}
            ),
            backend.endpoint("load_metrics").serve_endpoint(load_metrics, metrics_labels=labels),
            backend.endpoint("clear_kv_blocks").serve_endpoint(clear),
            prefill.endpoint("generate").serve_endpoint(generate, graceful_shutdown=False),
        )
    finally:
        logger.info("cleaned up")
        print("cleaned up", flush=True)


if __name__ == "__main__":
    uvloop.run(worker())
