"""Pins what `dynamo.llm` promises: a change of this list is a change of the public interface."""

from __future__ import annotations

import subprocess
import sys

import dynamo.llm

PUBLIC = {
    "AisPerfConfig", "ApproxKvIndexer", "BlockManager", "ChatTemplate", "ContextLengthExceeded", "Detokenizer",
    "DisaggregatedRouter", "EngineConfig", "EngineType", "EntrypointArgs", "FileCache", "FileRef", "FileServer",
    "ForwardPassMetrics", "FpmDirectPublisher", "FpmEventRelay", "FpmEventSubscriber", "FrontendExtensionContext",
    "FrontendResponse", "FrontendRoute", "HttpAsyncEngine", "HttpError", "HttpService", "KserveGrpcService",
    "KvDcRelay", "KvEventPublisher", "KvIndexer", "KvMetricsAggregator", "KvPushRouter", "KvRecorder", "KvRouter",
    "KvRouterConfig", "KvStateAgentHost", "KvStateAttachmentOwner", "KvStats", "LLMUnaryClient", "LoRADownloader",
    "LoadThresholdConfig", "LocalModel", "MediaDecoder", "MediaFetcher", "ModelCard", "ModelCardInstanceId",
    "ModelInput", "ModelRuntimeConfig", "ModelType", "MultimodalEmbeddingCachePublisher", "OverlapScores",
    "Preprocessor", "PythonAsyncEngine", "RadixTree", "RoutedEngine", "RouterConfig", "RouterMode",
    "RouterQueueLimitExceeded", "RoutingConstraints", "SelectionService", "SelectionServiceError",
    "SpecDecodeStats", "TextStream", "Tokenizer", "UnaryChatModel", "WorkerMetricsPublisher", "WorkerStats",
    "WorkerType", "ZmqKvEventListener", "ZmqKvEventPublisher", "ZmqKvEventPublisherConfig", "card_from_dict",
    "compute_block_hash_for_seq", "compute_block_hash_for_seq_py", "fetch_files", "fetch_llm", "fetch_model",
    "load_preprocessor", "load_tokenizer", "lora_name_to_id", "make_engine", "open_model", "openai_finish_reason",
    "register_llm", "register_model", "run_input", "run_kv_indexer", "run_select_service", "run_slot_tracker",
    "unregister_llm", "unregister_model", "update_model_taints", "with_engine_data",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    """`__all__` is exactly the promised list, and each name exists."""
    assert set(vars(dynamo.llm)["__all__"]) == PUBLIC
    assert all(hasattr(dynamo.llm, name) for name in PUBLIC)


def test_importing_is_cheap_by_leaving_heavy_libraries_out() -> None:
    """Jinja and tokenizers are imported when a model is opened, not before."""
    code = "import dynamo.llm, sys; print([m for m in ('jinja2', 'tokenizers', 'fastokens') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
