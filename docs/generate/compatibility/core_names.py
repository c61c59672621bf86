"""The names of NVIDIA Dynamo's `dynamo._core` in three ages, and where each of them is here.

They are those that `dir(dynamo._core)` shows in its packages 0.1.1 and 0.3.2 (A), 0.8.1 (B) and 1.6.1 (C), without
those that begin with an underscore. The state is asked of the code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from docs.generate.compatibility import python_llm

import dynamo._core
import dynamo.llm
from dynamo.runtime.process.legacy_flags import REFUSED

MODULE: Final = "dynamo._core"
ABOUT: Final = """\
`from dynamo._core import …` gives what the package in the last column has under that name."""
NAMES: Final[dict[str, str]] = {
    "A": (
        "AggregatedMetrics DisaggregatedRouter EndpointKvMetrics EtcdClient EtcdKvCache HttpError "
        "KvMetricsAggregator KvMetricsPublisher NatsQueue"
    ),
    "A, B": (
        "ApproxKvIndexer Backend CancellationToken Component ForwardPassMetrics KvIndexer KvRecorder KvStats "
        "Namespace OAIChatPreprocessor SpecDecodeStats WorkerStats ZmqKvEventListener ZmqKvEventPublisher "
        "ZmqKvEventPublisherConfig compute_block_hash_for_seq_py register_llm"
    ),
    "A, B, C": (
        "AsyncResponseStream Client DistributedRuntime Endpoint HttpAsyncEngine HttpService KvEventPublisher "
        "ModelDeploymentCard ModelType OverlapScores PythonAsyncEngine RadixTree RouterMode "
        "WorkerMetricsPublisher log_message"
    ),
    "A, C": ("KvRouter"),
    "B": ("KvPushRouter KvPushRouterStream fetch_llm prometheus_metrics unregister_llm"),
    "B, C": (
        "Context EngineConfig EngineType EntrypointArgs KserveGrpcService KvRouterConfig LoRADownloader "
        "MediaDecoder MediaFetcher ModelInput ModelRuntimeConfig PlannerDecision RouterConfig RuntimeMetrics "
        "VirtualConnectorClient VirtualConnectorCoordinator get_reasoning_parser_names get_tool_parser_names "
        "lora_name_to_id make_engine run_input"
    ),
    "C": (
        "AisPerfConfig Cancelled CannotConnect ConnectionTimeout ContextMetadata Disconnected DynamoException "
        "EngineShutdown FirstTokenSource FpmDirectPublisher FpmEventRelay FpmEventSubscriber "
        "FrontendExtensionContext FrontendResponse FrontendRoute Instance InvalidArgument KvDcRelay "
        "KvStateAgentHost KvStateAttachmentOwner LoadThresholdConfig ModelCardInstanceId "
        "MultimodalEmbeddingCachePublisher PyAsyncRequestStream ReasoningConfig ResponseSender RoutedEngine "
        "RouterQueueLimitExceeded RoutingConstraints SelectionCacheConfig SelectionService SelectionServiceError "
        "SpanProxy StreamIncomplete TransportType Unknown WorkerType WorkerUnavailable backend "
        "compute_block_hash_for_seq fetch_model register_model resolve_routing_image_token_id run_kv_indexer "
        "run_mocker_synthetic_trace_replay run_mocker_trace_replay run_select_service run_slot_tracker "
        "unregister_model update_model_taints"
    ),
}
_WORKS: Final = "works"
_REMARKS: Final = {
    "AsyncResponseStream": "`dynamo.runtime.ItemStream`",
    "get_reasoning_parser_names": "those of docs/how-to/serve/tools.md",
    "get_tool_parser_names": "likewise",
    "log_message": "a line of Python's logging",
}


def state(name: str) -> tuple[str, str]:
    """Return the state of a name, and where it is; `LookupError`: it is nowhere."""
    try:
        getattr(dynamo._core, name)
    except ImportError as error:
        return REFUSED, str(error).partition(": ")[2]
    except AttributeError:
        raise LookupError(f"{MODULE}.{name} can't be imported: say why in dynamo._core.unsupported") from None
    if name in _REMARKS:
        return _WORKS, _REMARKS[name]
    if name in vars(dynamo.llm)["__all__"]:
        state, remark = python_llm.state(name)
        return state, remark if state == REFUSED else f"`{python_llm.MODULE}`"
    return _WORKS, "`dynamo.runtime`"


def names() -> list[tuple[str, str]]:
    """Return each name with its ages, in order."""
    return sorted((name, ages) for ages, listed in NAMES.items() for name in listed.split())


def rows() -> Iterable[tuple[str, str, str, str]]:
    """Yield the rows of the table of docs/reference/compatibility/."""
    for name, ages in names():
        yield (f"`{name}`", ages, *state(name))
