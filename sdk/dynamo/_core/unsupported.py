"""Names of NVIDIA Dynamo's native module that are neither in `dynamo.llm` nor in `dynamo.runtime`, with what to use.

docs/reference/compatibility/index.md is made of this table too.
"""

from __future__ import annotations

from typing import Final

from dynamo.runtime.unsupported import LEFT_OUT

_FIGURES: Final = "keep metrics with prometheus_client: DYN_SYSTEM_PORT shows them under /metrics"
_LOAD: Final = "each instance's figures are in Client.instances(); workers answer the endpoint load_metrics, too"
_SCALING: Final = "pipelines are scaled by `kubectl scale`, or by an HPA on them; no planner asks a program"
_MOCKER: Final = "`dynamo simulate` replays traces and workloads; the mocker is `dynamo-run out=mocker`"
_PARSERS: Final = "frontends parse answers as `--dyn-reasoning-parser` of the worker says; programs don't"

INSTEAD: Final = {
    "AggregatedMetrics": _LOAD,
    "EndpointKvMetrics": _LOAD,
    "KvMetricsPublisher": "WorkerMetricsPublisher().publish(kv_used_blocks=…) of dynamo.llm publishes a worker's load",
    "KvPushRouterStream": "KvPushRouter.generate gives an async iterator",
    "NatsQueue": "frontends send prompts to prefill workers: serve one with is_prefill, or --is-prefill-worker",
    "RuntimeMetrics": _FIGURES,
    "prometheus_metrics": _FIGURES,
    "PlannerDecision": _SCALING,
    "VirtualConnectorClient": _SCALING,
    "VirtualConnectorCoordinator": _SCALING,
    "ContextMetadata": "Context.metadata is a mapping",
    "FirstTokenSource": LEFT_OUT["Endpoint.first_token_source"],
    "ResponseSender": LEFT_OUT["Endpoint.serve_bidirectional_endpoint"],
    "TransportType": "all instances are asked over NATS: Instance.transport says so",
    "ReasoningConfig": _PARSERS,
    "SelectionCacheConfig": "KvRouter.best_worker chooses and books without sending; it keeps nothing to configure",
    "resolve_routing_image_token_id": "this version serves text",
    "run_mocker_synthetic_trace_replay": _MOCKER,
    "run_mocker_trace_replay": _MOCKER,
    "backend": "an engine is a program of dynamo.runtime, or a Python file of `dynamo-worker --python-file`",
}


def sentence(name: str) -> str | None:
    """Return why a name can't be had, and what to use; None: NVIDIA Dynamo has no such name."""
    why = INSTEAD.get(name) or LEFT_OUT.get(name)
    return None if why is None else f"dynamo._core.{name} is not there: {why}"
