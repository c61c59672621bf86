"""NVIDIA Dynamo's names in `dynamo.llm`, by age, with the state of each: what is imported here says it.

`NAMES` holds names only, as its packages of 0.3 to 1.6 export them. A name that can't be imported needs a line in
`ABSENT`; one that can be and refuses is a `NotHere`, which says what to do instead.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from typing import Any, Final

import dynamo.llm
from dynamo.llm.unsupported import NotHere

MODULE: Final = "dynamo.llm"
REFUSED: Final = "refused"
ABOUT: Final = """\
What is refused can be imported; who uses it gets an `InvalidArgument` with that sentence. Programs that run are in
[models.md](../how-to/program/models.md)."""
NAMES: Final[dict[str, str]] = {
    "A": "DisaggregatedRouter KvMetricsAggregator",
    "A, B": (
        "ApproxKvIndexer BlockManager ForwardPassMetrics KvIndexer KvPushRouter KvRecorder KvStats SpecDecodeStats "
        "WorkerStats ZmqKvEventListener ZmqKvEventPublisher ZmqKvEventPublisherConfig compute_block_hash_for_seq_py"
    ),
    "A, B, C": (
        "EngineType EntrypointArgs HttpAsyncEngine HttpError HttpService KvEventPublisher KvRouterConfig ModelType "
        "OverlapScores RadixTree RouterConfig RouterMode WorkerMetricsPublisher fetch_llm make_engine register_llm "
        "run_input"
    ),
    "B, C": (
        "KserveGrpcService LoRADownloader MediaDecoder MediaFetcher ModelInput ModelRuntimeConfig PythonAsyncEngine "
        "lora_name_to_id unregister_llm"
    ),
    "C": (
        "AisPerfConfig FpmDirectPublisher FpmEventRelay FpmEventSubscriber FrontendExtensionContext FrontendResponse "
        "FrontendRoute KvDcRelay KvRouter KvStateAgentHost KvStateAttachmentOwner LLMUnaryClient LoadThresholdConfig "
        "ModelCardInstanceId MultimodalEmbeddingCachePublisher RoutedEngine RouterQueueLimitExceeded "
        "RoutingConstraints SelectionService UnaryChatModel WorkerType compute_block_hash_for_seq exceptions "
        "fetch_model register_model run_kv_indexer run_select_service run_slot_tracker unregister_model "
        "update_model_taints with_engine_data"
    ),
}
FORMS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("register_llm(model_type, endpoint, model_path, …)", "A", "works", "`Backend` takes tokens, `Chat` and "
     "`Completion` take text; up to nine arguments by position"),
    ("register_llm(model_input, model_type, endpoint, model_path, …)", "B", "works", "up to fourteen arguments by "
     "position"),
    ("register_model(…, *, worker_type=…)", "C", "works", "`worker_type` may be left out; `needs` and "
     "`self_host_metadata` have no effect; adapters, media, tensors and aliases are refused"),
    ("unregister_model(endpoint)", "B, C", "works", "the endpoint is served on, without a model"),
    ("KvEventPublisher(component, worker_id, kv_block_size)", "A, B", "works", "the endpoint at which the process "
     "registered a model is meant; `publish_stored(event_id, …)` too"),
    ("KvEventPublisher(endpoint, …)", "C", "works", "with `zmq_endpoint` an engine's own stream is relayed"),
    ("HttpService(port).add_chat_completions_model(name, engine)", "A", "works", "on loopback, or where "
     "DYN_HTTP_HOST says"),
    ("add_chat_completions_model(name, checksum, engine)", "B, C", "works", "the checksum has no effect"),
    ("HttpService.run(token), .run(runtime)", "A, B, C", "works", "starts at once, as NVIDIA Dynamo's; the task ends "
     "after `shutdown()`, or with what it was given"),
    ("run_input(runtime, 'http' / 'grpc' / 'text' / 'stdin' / 'dyn://…', engine)", "B, C", "works", "`batch:` is "
     "refused with what to use instead"),
    ("KserveGrpcService(port, host).add_completions_model(name, checksum, engine)", "B, C", "works", "on loopback, or "
     "where DYN_HTTP_HOST says; `add_tensor_model` is refused"),
    ("EntrypointArgs(chat_engine_factory=…)", "C", "refused", "register a model with `ModelInput.Text`"),
    ("ModelRuntimeConfig.tool_call_parser, .reasoning_parser", "B, C", "works",
     "the names of docs/how-to/serve/tools.md; any other is refused"),
)  # fmt: skip
"""Calls whose arguments changed between ages."""
ABSENT: Final[dict[str, str]] = {}
_REMARKS: Final = {
    "exceptions": "a module: the runtime's errors and `HttpError`",
    "run_kv_indexer": "`python -m dynamo.router` answers `get_overlap_scores`",
    "run_select_service": "`KvRouter.best_worker`, or `python -m dynamo.router`",
    "run_slot_tracker": "routers here tell each other what they send",
    "update_model_taints": "refused where there are taints: no router here reads them",
    "RouterQueueLimitExceeded": "can be imported and excepted; a full queue is `CapacityExceeded`",
    "compute_block_hash_for_seq_py": "`compute_block_hash_for_seq` under its former name",
    "HttpAsyncEngine": "`PythonAsyncEngine` under its former name",
    "RouterMode": "`Direct` and `DeviceAwareWeighted` are refused where a model is registered with them",
    "ModelType": "what isn't chat, completions or a prefill worker's is refused where a model is registered with it",
}
_REFUSING: Final = ("run_kv_indexer", "run_select_service", "run_slot_tracker")


def state(name: str) -> tuple[str, str]:
    """Return the state of one of NVIDIA Dynamo's names, and a remark; `LookupError` where nothing is known of it."""
    if name in ABSENT:
        return "not there", ABSENT[name]
    try:
        value = getattr(dynamo.llm, name) if name != "exceptions" else None
    except AttributeError:
        raise LookupError(f"dynamo.llm.{name} can't be imported: say why in ABSENT") from None
    if isinstance(value, type) and issubclass(value, NotHere):
        return REFUSED, value.instead
    if name in _REFUSING:
        return REFUSED, _REMARKS[name]
    return "works", _REMARKS.get(name) or _first_sentence(value)


def rows() -> Iterable[tuple[str, str, str, str]]:
    """Name, ages, state, remark, in order of the names."""
    entries = sorted((name, ages) for ages, names in NAMES.items() for name in names.split())
    for name, ages in entries:
        yield (name, ages, *state(name))


def _first_sentence(value: Any) -> str:
    """Return the first sentence of its own documentation."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    if text.startswith("See the module"):
        text = (sys.modules[value.__module__].__doc__ or "").split("\n")[0].replace(" See the module", "")
    return text.split(". ")[0].rstrip(".:")
