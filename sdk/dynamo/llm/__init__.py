"""Everything between text and an engine's tokens, and routing by what KV caches hold.

Model cards, tokenising, templates, detokenising; under the original's names its router, index and publishers.

Names are imported when they are first used, so that a part costs only those who need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dynamo.llm.adapter_ids import lora_name_to_id as lora_name_to_id
    from dynamo.llm.card import FileRef as FileRef
    from dynamo.llm.card import ModelCard as ModelCard
    from dynamo.llm.card import card_from_dict as card_from_dict
    from dynamo.llm.detokenize import Detokenizer as Detokenizer
    from dynamo.llm.detokenize import openai_finish_reason as openai_finish_reason
    from dynamo.llm.entrypoint import EngineConfig as EngineConfig
    from dynamo.llm.entrypoint import EngineType as EngineType
    from dynamo.llm.entrypoint import EntrypointArgs as EntrypointArgs
    from dynamo.llm.entrypoint import make_engine as make_engine
    from dynamo.llm.entrypoint import run_input as run_input
    from dynamo.llm.exceptions import HttpError as HttpError
    from dynamo.llm.exceptions import RouterQueueLimitExceeded as RouterQueueLimitExceeded
    from dynamo.llm.exceptions import SelectionServiceError as SelectionServiceError
    from dynamo.llm.files import FileCache as FileCache
    from dynamo.llm.files import FileServer as FileServer
    from dynamo.llm.files import fetch_files as fetch_files
    from dynamo.llm.http_service import HttpAsyncEngine as HttpAsyncEngine
    from dynamo.llm.http_service import HttpService as HttpService
    from dynamo.llm.http_service import PythonAsyncEngine as PythonAsyncEngine
    from dynamo.llm.kserve_service import KserveGrpcService as KserveGrpcService
    from dynamo.llm.kv.config import KvRouterConfig as KvRouterConfig
    from dynamo.llm.kv.hashing import compute_block_hash_for_seq as compute_block_hash_for_seq
    from dynamo.llm.kv.hashing import compute_block_hash_for_seq_py as compute_block_hash_for_seq_py
    from dynamo.llm.kv.indexers import ApproxKvIndexer as ApproxKvIndexer
    from dynamo.llm.kv.indexers import KvIndexer as KvIndexer
    from dynamo.llm.kv.load import ForwardPassMetrics as ForwardPassMetrics
    from dynamo.llm.kv.load import KvStats as KvStats
    from dynamo.llm.kv.load import SpecDecodeStats as SpecDecodeStats
    from dynamo.llm.kv.load import WorkerMetricsPublisher as WorkerMetricsPublisher
    from dynamo.llm.kv.load import WorkerStats as WorkerStats
    from dynamo.llm.kv.older_publishing import ZmqKvEventPublisher as ZmqKvEventPublisher
    from dynamo.llm.kv.older_publishing import ZmqKvEventPublisherConfig as ZmqKvEventPublisherConfig
    from dynamo.llm.kv.publishing import KvEventPublisher as KvEventPublisher
    from dynamo.llm.kv.service import KvPushRouter as KvPushRouter
    from dynamo.llm.kv.service import KvRouter as KvRouter
    from dynamo.llm.kv.tree import OverlapScores as OverlapScores
    from dynamo.llm.kv.tree import RadixTree as RadixTree
    from dynamo.llm.model_kinds import ModelInput as ModelInput
    from dynamo.llm.model_kinds import ModelType as ModelType
    from dynamo.llm.model_kinds import WorkerType as WorkerType
    from dynamo.llm.model_runtime import ModelRuntimeConfig as ModelRuntimeConfig
    from dynamo.llm.not_here import AisPerfConfig as AisPerfConfig
    from dynamo.llm.not_here import BlockManager as BlockManager
    from dynamo.llm.not_here import DisaggregatedRouter as DisaggregatedRouter
    from dynamo.llm.not_here import FpmDirectPublisher as FpmDirectPublisher
    from dynamo.llm.not_here import FpmEventRelay as FpmEventRelay
    from dynamo.llm.not_here import FpmEventSubscriber as FpmEventSubscriber
    from dynamo.llm.not_here import FrontendExtensionContext as FrontendExtensionContext
    from dynamo.llm.not_here import FrontendResponse as FrontendResponse
    from dynamo.llm.not_here import FrontendRoute as FrontendRoute
    from dynamo.llm.not_here import KvDcRelay as KvDcRelay
    from dynamo.llm.not_here import KvMetricsAggregator as KvMetricsAggregator
    from dynamo.llm.not_here import KvRecorder as KvRecorder
    from dynamo.llm.not_here import KvStateAgentHost as KvStateAgentHost
    from dynamo.llm.not_here import KvStateAttachmentOwner as KvStateAttachmentOwner
    from dynamo.llm.not_here import LoadThresholdConfig as LoadThresholdConfig
    from dynamo.llm.not_here import LoRADownloader as LoRADownloader
    from dynamo.llm.not_here import MediaDecoder as MediaDecoder
    from dynamo.llm.not_here import MediaFetcher as MediaFetcher
    from dynamo.llm.not_here import ModelCardInstanceId as ModelCardInstanceId
    from dynamo.llm.not_here import MultimodalEmbeddingCachePublisher as MultimodalEmbeddingCachePublisher
    from dynamo.llm.not_here import RoutingConstraints as RoutingConstraints
    from dynamo.llm.not_here import SelectionService as SelectionService
    from dynamo.llm.not_here import ZmqKvEventListener as ZmqKvEventListener
    from dynamo.llm.not_here import run_kv_indexer as run_kv_indexer
    from dynamo.llm.not_here import run_select_service as run_select_service
    from dynamo.llm.not_here import run_slot_tracker as run_slot_tracker
    from dynamo.llm.preprocess import ContextLengthExceeded as ContextLengthExceeded
    from dynamo.llm.preprocess import Preprocessor as Preprocessor
    from dynamo.llm.preprocess import load_preprocessor as load_preprocessor
    from dynamo.llm.registration import fetch_llm as fetch_llm
    from dynamo.llm.registration import fetch_model as fetch_model
    from dynamo.llm.registration import register_llm as register_llm
    from dynamo.llm.registration import register_model as register_model
    from dynamo.llm.registration import unregister_llm as unregister_llm
    from dynamo.llm.registration import unregister_model as unregister_model
    from dynamo.llm.registration import update_model_taints as update_model_taints
    from dynamo.llm.routing_options import RoutedEngine as RoutedEngine
    from dynamo.llm.routing_options import RouterConfig as RouterConfig
    from dynamo.llm.routing_options import RouterMode as RouterMode
    from dynamo.llm.sources import LocalModel as LocalModel
    from dynamo.llm.sources import open_model as open_model
    from dynamo.llm.template import ChatTemplate as ChatTemplate
    from dynamo.llm.tokenizer import TextStream as TextStream
    from dynamo.llm.tokenizer import Tokenizer as Tokenizer
    from dynamo.llm.tokenizer import load_tokenizer as load_tokenizer
    from dynamo.llm.unary import LLMUnaryClient as LLMUnaryClient
    from dynamo.llm.unary import UnaryChatModel as UnaryChatModel
    from dynamo.llm.unary import with_engine_data as with_engine_data

__all__ = [
    "AisPerfConfig",
    "ApproxKvIndexer",
    "BlockManager",
    "ChatTemplate",
    "ContextLengthExceeded",
    "Detokenizer",
    "DisaggregatedRouter",
    "EngineConfig",
    "EngineType",
    "EntrypointArgs",
    "FileCache",
    "FileRef",
    "FileServer",
    "ForwardPassMetrics",
    "FpmDirectPublisher",
    "FpmEventRelay",
    "FpmEventSubscriber",
    "FrontendExtensionContext",
    "FrontendResponse",
    "FrontendRoute",
    "HttpAsyncEngine",
    "HttpError",
    "HttpService",
    "KserveGrpcService",
    "KvDcRelay",
    "KvEventPublisher",
    "KvIndexer",
    "KvMetricsAggregator",
    "KvPushRouter",
    "KvRecorder",
    "KvRouter",
    "KvRouterConfig",
    "KvStateAgentHost",
    "KvStateAttachmentOwner",
    "KvStats",
    "LLMUnaryClient",
    "LoRADownloader",
    "LoadThresholdConfig",
    "LocalModel",
    "MediaDecoder",
    "MediaFetcher",
    "ModelCard",
    "ModelCardInstanceId",
    "ModelInput",
    "ModelRuntimeConfig",
    "ModelType",
    "MultimodalEmbeddingCachePublisher",
    "OverlapScores",
    "Preprocessor",
    "PythonAsyncEngine",
    "RadixTree",
    "RoutedEngine",
    "RouterConfig",
    "RouterMode",
    "RouterQueueLimitExceeded",
    "RoutingConstraints",
    "SelectionService",
    "SelectionServiceError",
    "SpecDecodeStats",
    "TextStream",
    "Tokenizer",
    "UnaryChatModel",
    "WorkerMetricsPublisher",
    "WorkerStats",
    "WorkerType",
    "ZmqKvEventListener",
    "ZmqKvEventPublisher",
    "ZmqKvEventPublisherConfig",
    "card_from_dict",
    "compute_block_hash_for_seq",
    "compute_block_hash_for_seq_py",
    "fetch_files",
    "fetch_llm",
    "fetch_model",
    "load_preprocessor",
    "load_tokenizer",
    "lora_name_to_id",
    "make_engine",
    "open_model",
    "openai_finish_reason",
    "register_llm",
    "register_model",
    "run_input",
    "run_kv_indexer",
    "run_select_service",
    "run_slot_tracker",
    "unregister_llm",
    "unregister_model",
    "update_model_taints",
    "with_engine_data",
]

_HOMES: Final = {
    "AisPerfConfig": "not_here",
    "ApproxKvIndexer": "kv.indexers",
    "BlockManager": "not_here",
    "ChatTemplate": "template",
    "ContextLengthExceeded": "preprocess",
    "Detokenizer": "detokenize",
    "DisaggregatedRouter": "not_here",
    "EngineConfig": "entrypoint",
    "EngineType": "entrypoint",
    "EntrypointArgs": "entrypoint",
    "FileCache": "files",
    "FileRef": "card",
    "FileServer": "files",
    "ForwardPassMetrics": "kv.load",
    "FpmDirectPublisher": "not_here",
    "FpmEventRelay": "not_here",
    "FpmEventSubscriber": "not_here",
    "FrontendExtensionContext": "not_here",
    "FrontendResponse": "not_here",
    "FrontendRoute": "not_here",
    "HttpAsyncEngine": "http_service",
    "HttpError": "exceptions",
    "HttpService": "http_service",
    "KserveGrpcService": "kserve_service",
    "KvDcRelay": "not_here",
    "KvEventPublisher": "kv.publishing",
    "KvIndexer": "kv.indexers",
    "KvMetricsAggregator": "not_here",
    "KvPushRouter": "kv.service",
    "KvRecorder": "not_here",
    "KvRouter": "kv.service",
    "KvRouterConfig": "kv.config",
    "KvStateAgentHost": "not_here",
    "KvStateAttachmentOwner": "not_here",
    "KvStats": "kv.load",
    "LLMUnaryClient": "unary",
    "LoRADownloader": "not_here",
    "LoadThresholdConfig": "not_here",
    "LocalModel": "sources",
    "MediaDecoder": "not_here",
    "MediaFetcher": "not_here",
    "ModelCard": "card",
    "ModelCardInstanceId": "not_here",
    "ModelInput": "model_kinds",
    "ModelRuntimeConfig": "model_runtime",
    "ModelType": "model_kinds",
    "MultimodalEmbeddingCachePublisher": "not_here",
    "OverlapScores": "kv.tree",
    "Preprocessor": "preprocess",
    "PythonAsyncEngine": "http_service",
    "RadixTree": "kv.tree",
    "RoutedEngine": "routing_options",
    "RouterConfig": "routing_options",
    "RouterMode": "routing_options",
    "RouterQueueLimitExceeded": "exceptions",
    "RoutingConstraints": "not_here",
    "SelectionService": "not_here",
    "SelectionServiceError": "exceptions",
    "SpecDecodeStats": "kv.load",
    "TextStream": "tokenizer",
    "Tokenizer": "tokenizer",
    "UnaryChatModel": "unary",
    "WorkerMetricsPublisher": "kv.load",
    "WorkerStats": "kv.load",
    "WorkerType": "model_kinds",
    "ZmqKvEventListener": "not_here",
    "ZmqKvEventPublisher": "kv.older_publishing",
    "ZmqKvEventPublisherConfig": "kv.older_publishing",
    "card_from_dict": "card",
    "compute_block_hash_for_seq": "kv.hashing",
    "compute_block_hash_for_seq_py": "kv.hashing",
    "fetch_files": "files",
    "fetch_llm": "registration",
    "fetch_model": "registration",
    "load_preprocessor": "preprocess",
    "load_tokenizer": "tokenizer",
    "lora_name_to_id": "adapter_ids",
    "make_engine": "entrypoint",
    "open_model": "sources",
    "openai_finish_reason": "detokenize",
    "register_llm": "registration",
    "register_model": "registration",
    "run_input": "entrypoint",
    "run_kv_indexer": "not_here",
    "run_select_service": "not_here",
    "run_slot_tracker": "not_here",
    "unregister_llm": "registration",
    "unregister_model": "registration",
    "update_model_taints": "registration",
    "with_engine_data": "unary",
}
"""The module of each name; tests/test_public_api.py holds it against the imports above."""

if not TYPE_CHECKING:

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
