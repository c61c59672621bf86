"""`vllm bench serve` measures the server by each of its backends that the server has a route for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests_clients.conftest import Clients
from tests_clients.large.conftest import OFFLINE

REQUESTS: Final = 20
PROMPT: Final = 64
TOKENS: Final = 24


def benched(clients: Clients, checkout: Path, backend: str, path: str, *words: str) -> dict[str, Any]:
    """Run `vllm bench serve`; what it measured, once no request has failed."""
    where, model = ("EMBEDDER", "embed") if backend in ("openai-embeddings", "vllm-rerank") else ("SERVER", "demo")
    clients.run(
        "vllm", "vllm", "bench", "serve", "--backend", backend, "--base-url", clients.env[where], "--endpoint", path,
        "--model", model, "--tokenizer", str(checkout), "--num-prompts", str(REQUESTS), "--max-concurrency", "4",
        "--save-result", "--save-detailed", "--result-dir", str(clients.folder), "--result-filename", "result.json",
        "--ready-check-timeout-sec", "60", *words, **OFFLINE,
    )  # fmt: skip
    figures: dict[str, Any] = json.loads((clients.folder / "result.json").read_text())
    assert not any(figures["errors"])
    return figures


@pytest.mark.parametrize(
    ("backend", "path"),
    [
        ("openai", "/v1/completions"),
        ("openai-chat", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
    ],
)
def test_texts(clients: Clients, checkout: Path, backend: str, path: str) -> None:
    """Streams have as many tokens as were asked for, and a time for each of them."""
    lengths = ("--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS), "--ignore-eos")
    figures = benched(clients, checkout, backend, path, "--dataset-name", "random", *lengths)
    assert (figures["completed"], figures["failed"]) == (REQUESTS, 0)
    assert figures["output_lens"] == [TOKENS] * REQUESTS
    assert min(figures["input_lens"]) >= PROMPT  # as the server counts them
    assert all(figures["ttfts"])


def test_embeddings(clients: Clients, checkout: Path) -> None:
    """Texts are embedded."""
    words = ("--dataset-name", "random", "--random-input-len", str(PROMPT))
    figures = benched(clients, checkout, "openai-embeddings", "/v1/embeddings", *words)
    assert figures["completed"] == REQUESTS
    assert min(figures["input_lens"]) >= PROMPT


def test_rerank(clients: Clients, checkout: Path) -> None:
    """Documents are ranked, four of them in a request."""
    words = ("--dataset-name", "random-rerank", "--random-input-len", str(PROMPT), "--random-batch-size", "4")
    figures = benched(clients, checkout, "vllm-rerank", "/v1/rerank", *words)
    assert figures["completed"] == REQUESTS / 4
