"""Pins what `dynamo.llm` promises: a change of this list is a change of the public interface."""

from __future__ import annotations

import subprocess
import sys

import dynamo.llm

PUBLIC = {
    "ApproxKvIndexer", "ChatTemplate", "ContextLengthExceeded", "Detokenizer", "FileCache", "FileRef",
    "FileServer", "ForwardPassMetrics", "KvEventPublisher", "KvIndexer", "KvPushRouter", "KvRouter",
    "KvRouterConfig", "KvStats", "LocalModel", "ModelCard", "OverlapScores", "Preprocessor", "RadixTree",
    "TextStream", "Tokenizer", "WorkerMetricsPublisher", "WorkerStats", "card_from_dict",
    "compute_block_hash_for_seq", "fetch_files", "load_preprocessor", "load_tokenizer", "open_model",
    "openai_finish_reason",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    """`__all__` is exactly the promised list, and each name exists."""
    assert set(dynamo.llm.__all__) == PUBLIC
    assert all(hasattr(dynamo.llm, name) for name in PUBLIC)


def test_importing_is_cheap_by_leaving_heavy_libraries_out() -> None:
    """Jinja and tokenizers are imported when a model is opened, not before."""
    code = "import dynamo.llm, sys; print([m for m in ('jinja2', 'tokenizers', 'fastokens') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
