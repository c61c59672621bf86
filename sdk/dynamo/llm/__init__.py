"""Everything between text and an engine's tokens, and routing by what KV caches hold.

Model cards, tokenising, templates, detokenising; under the original's names its router, index and publishers.

Names are imported when they are first used, so that a part costs only those who need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dynamo.llm.card import FileRef as FileRef
    from dynamo.llm.card import ModelCard as ModelCard
    from dynamo.llm.card import card_from_dict as card_from_dict
    from dynamo.llm.detokenize import Detokenizer as Detokenizer
    from dynamo.llm.detokenize import openai_finish_reason as openai_finish_reason
    from dynamo.llm.files import FileCache as FileCache
    from dynamo.llm.files import FileServer as FileServer
    from dynamo.llm.files import fetch_files as fetch_files
    from dynamo.llm.kv.config import KvRouterConfig as KvRouterConfig
    from dynamo.llm.kv.hashing import compute_block_hash_for_seq as compute_block_hash_for_seq
    from dynamo.llm.kv.indexers import ApproxKvIndexer as ApproxKvIndexer
    from dynamo.llm.kv.indexers import KvIndexer as KvIndexer
    from dynamo.llm.kv.load import ForwardPassMetrics as ForwardPassMetrics
    from dynamo.llm.kv.load import KvStats as KvStats
    from dynamo.llm.kv.load import WorkerMetricsPublisher as WorkerMetricsPublisher
    from dynamo.llm.kv.load import WorkerStats as WorkerStats
    from dynamo.llm.kv.publishing import KvEventPublisher as KvEventPublisher
    from dynamo.llm.kv.service import KvPushRouter as KvPushRouter
    from dynamo.llm.kv.service import KvRouter as KvRouter
    from dynamo.llm.kv.tree import OverlapScores as OverlapScores
    from dynamo.llm.kv.tree import RadixTree as RadixTree
    from dynamo.llm.preprocess import ContextLengthExceeded as ContextLengthExceeded
    from dynamo.llm.preprocess import Preprocessor as Preprocessor
    from dynamo.llm.preprocess import load_preprocessor as load_preprocessor
    from dynamo.llm.sources import LocalModel as LocalModel
    from dynamo.llm.sources import open_model as open_model
    from dynamo.llm.template import ChatTemplate as ChatTemplate
    from dynamo.llm.tokenizer import TextStream as TextStream
    from dynamo.llm.tokenizer import Tokenizer as Tokenizer
    from dynamo.llm.tokenizer import load_tokenizer as load_tokenizer

__all__ = [
    "ApproxKvIndexer",
    "ChatTemplate",
    "ContextLengthExceeded",
    "Detokenizer",
    "FileCache",
    "FileRef",
    "FileServer",
    "ForwardPassMetrics",
    "KvEventPublisher",
    "KvIndexer",
    "KvPushRouter",
    "KvRouter",
    "KvRouterConfig",
    "KvStats",
    "LocalModel",
    "ModelCard",
    "OverlapScores",
    "Preprocessor",
    "RadixTree",
    "TextStream",
    "Tokenizer",
    "WorkerMetricsPublisher",
    "WorkerStats",
    "card_from_dict",
    "compute_block_hash_for_seq",
    "fetch_files",
    "load_preprocessor",
    "load_tokenizer",
    "open_model",
    "openai_finish_reason",
]

_HOMES: Final = {
    "ApproxKvIndexer": "kv.indexers",
    "ChatTemplate": "template",
    "ContextLengthExceeded": "preprocess",
    "Detokenizer": "detokenize",
    "FileCache": "files",
    "FileRef": "card",
    "FileServer": "files",
    "ForwardPassMetrics": "kv.load",
    "KvEventPublisher": "kv.publishing",
    "KvIndexer": "kv.indexers",
    "KvPushRouter": "kv.service",
    "KvRouter": "kv.service",
    "KvRouterConfig": "kv.config",
    "KvStats": "kv.load",
    "LocalModel": "sources",
    "ModelCard": "card",
    "OverlapScores": "kv.tree",
    "Preprocessor": "preprocess",
    "RadixTree": "kv.tree",
    "TextStream": "tokenizer",
    "Tokenizer": "tokenizer",
    "WorkerMetricsPublisher": "kv.load",
    "WorkerStats": "kv.load",
    "card_from_dict": "card",
    "compute_block_hash_for_seq": "kv.hashing",
    "fetch_files": "files",
    "load_preprocessor": "preprocess",
    "load_tokenizer": "tokenizer",
    "open_model": "sources",
    "openai_finish_reason": "detokenize",
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
