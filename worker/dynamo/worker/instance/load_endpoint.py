"""The endpoint `load_metrics` beside `generate`, as workers of 0.1 to 0.3 had it: what the engine does now, on request.

The answer has the shape of those ages' `ForwardPassMetrics`; figures that an engine doesn't know are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from dynamo.llm.kv_events.load_publisher import ForwardPassMetrics, KvStats, WorkerStats
from dynamo.runtime.endpoint import Served
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.request_plane.server import Incoming
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Engine, EngineFacts

NAME: Final = "load_metrics"


async def serve_load(
    runtime: DistributedRuntime, path: EndpointPath, engine: Engine, facts: EngineFacts
) -> Served | None:
    """Serve it in the component of `path`; None where that is its own name."""
    if path.endpoint == NAME:
        return None
    return await runtime.endpoint(path._replace(endpoint=NAME)).start(_answering(engine, facts))


def figures(engine: Engine, facts: EngineFacts) -> ForwardPassMetrics:
    """Return what `engine` does now, over all its ranks."""
    load, ranks = engine.load(), facts.data_parallel_size
    return ForwardPassMetrics(
        WorkerStats(load.running, (facts.max_num_seqs or 0) * ranks, load.waiting),
        KvStats(load.used_kv_blocks, (facts.total_kv_blocks or 0) * ranks, load.kv_usage),
    )


def _answering(engine: Engine, facts: EngineFacts) -> Callable[[Incoming], None]:
    def answer(incoming: Incoming) -> None:
        incoming.finish(msgspec.to_builtins(figures(engine, facts)))

    return answer
