"""guidellm measures each API of the server that it has a request format for, as its README says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests_clients.conftest import Clients
from tests_clients.large.conftest import OFFLINE

REQUESTS: Final = 20
TOKENS: Final = 24
TEXT: Final = f"kind=synthetic_text,prompt_tokens=64,output_tokens={TOKENS}"


def benchmarks(clients: Clients, checkout: Path, path: str, *words: str) -> list[dict[str, Any]]:
    """Run `guidellm run` against a route; the metrics of its benchmarks, once no request of them has failed."""
    where = clients.env["EMBEDDER" if path == "/v1/embeddings" else "SERVER"]
    clients.run(
        "guidellm", "guidellm", "run", "--backend", f"kind=openai_http,target={where},request_format={path}",
        "--tokenizer", f"kind=huggingface_auto,model={checkout}", *words, **OFFLINE,
    )  # fmt: skip
    report = json.loads((clients.folder / "benchmarks.json").read_text())
    metrics: list[dict[str, Any]] = [benchmark["metrics"] for benchmark in report["benchmarks"]]
    assert all(figures["request_totals"]["errored"] == 0 for figures in metrics)
    return metrics


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_texts(clients: Clients, checkout: Path, path: str) -> None:
    """Four streams at a time; each answer has as many tokens as were asked for."""
    words = ("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}")
    (figures,) = benchmarks(clients, checkout, path, *words, "--data", TEXT)
    assert figures["request_totals"]["successful"] == REQUESTS
    tokens = figures["output_token_count"]["successful"]
    assert tokens["min"] == tokens["max"] == TOKENS
    assert figures["time_to_first_token_ms"]["successful"]["count"] == REQUESTS


def test_tools(clients: Clients, checkout: Path) -> None:
    """Conversations in which the first turn has to call a tool, and its result goes back."""
    words = ("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=12")
    turns = {"kind": "synthetic_text", "prompt_tokens": 64, "output_tokens": TOKENS, "turns": 2, "tool_call_turns": [0]}
    (figures,) = benchmarks(clients, checkout, "/v1/chat/completions", *words, "--data", json.dumps(turns))
    assert figures["request_totals"]["successful"] == 12
    assert figures["tool_call"]["tokens"]["output"]["successful"]["count"] >= 3  # of three requests one has to call


def test_sweep(clients: Clients, checkout: Path) -> None:
    """The first benchmark of its README: one request after the other, all at once, and a rate between both."""
    words = ("--profile", "kind=sweep,sweep_size=3", "--constraint", "kind=max_duration,seconds=5")
    slowest, fastest, between = benchmarks(clients, checkout, "/v1/chat/completions", *words, "--data", TEXT)
    assert all(figures["request_totals"]["successful"] for figures in (slowest, fastest, between))
    rates = [figures["requests_per_second"]["successful"]["mean"] for figures in (slowest, fastest)]
    assert rates[0] < rates[1]


def test_embeddings(clients: Clients, checkout: Path) -> None:
    """Texts are embedded."""
    words = ("--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={REQUESTS}")
    (figures,) = benchmarks(clients, checkout, "/v1/embeddings", *words, "--data", TEXT)
    assert figures["request_totals"]["successful"] == REQUESTS
