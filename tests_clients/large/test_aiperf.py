"""aiperf profiles each API of the server that it has a name for, as its README says."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest
from tests_clients.conftest import Clients

REQUESTS: Final = 10
PROMPT: Final = 64
TOKENS: Final = 24
NOWHERE: Final = "http://127.0.0.1:9"
"""No hub: told by `HF_HUB_OFFLINE`, aiperf takes a folder for a name in the hub's cache."""
EXACT: Final = ("--streaming", "--isl", str(PROMPT), "--osl", str(TOKENS), "--extra-inputs", "ignore_eos:true")
"""As many tokens as were asked for, so that any other number is a mistake."""


def profiled(clients: Clients, checkout: Path, kind: str, *words: str, where: str = "SERVER") -> dict[str, Any]:
    """Run `aiperf profile` against an API; what it measured, once no request has failed."""
    model = "demo" if where == "SERVER" else "embed"
    with tempfile.TemporaryDirectory() as short:  # its sockets lie there, whose paths have at most 107 characters
        clients.run(
            "aiperf", "aiperf", "profile", "--model", model, "--url", clients.env[where], "--endpoint-type", kind,
            "--tokenizer", str(checkout), "--request-count", str(REQUESTS), "--concurrency", "2", *words,
            TMPDIR=short, HF_ENDPOINT=NOWHERE,
        )  # fmt: skip
    (report,) = clients.folder.rglob("profile_export_aiperf.json")
    results: dict[str, Any] = json.loads(report.read_text())
    assert results["is_complete"]
    assert results["error_summary"] == []
    assert results["request_error_rate"]["avg"] == 0
    assert results["request_count"]["avg"] == REQUESTS
    return results


def always(results: dict[str, Any], name: str) -> float:
    """A figure that is the same for all requests."""
    assert results[name]["count"] == REQUESTS
    assert results[name]["min"] == results[name]["max"]
    value: float = results[name]["max"]
    return value


def test_chats(clients: Clients, checkout: Path) -> None:
    """Server and aiperf count the same tokens, those of the chat template among them; it reads the server's metrics."""
    results = profiled(clients, checkout, "chat", *EXACT, "--apply-chat-template", "--wait-for-model-timeout", "60")
    assert always(results, "usage_prompt_tokens") == PROMPT
    assert always(results, "usage_completion_tokens") == TOKENS
    assert always(results, "output_sequence_length") == TOKENS
    assert results["time_to_first_token"]["count"] == REQUESTS
    (report,) = clients.folder.rglob("server_metrics_export.json")
    metrics = json.loads(report.read_text())["metrics"]
    (counted,) = metrics["dynamo_frontend_output_tokens"]["series"]
    assert 0 < counted["stats"]["total"] <= REQUESTS * TOKENS  # as of its last look, which may be before the end


@pytest.mark.parametrize("kind", ["completions", "responses", "messages"])
def test_other_apis(clients: Clients, checkout: Path, kind: str) -> None:
    """Streams of the other APIs have as many tokens as were asked for."""
    results = profiled(clients, checkout, kind, *EXACT)
    assert always(results, "output_sequence_length") == TOKENS
    assert results["time_to_first_token"]["count"] == REQUESTS
    if kind != "responses":  # aiperf reads usage from `response.completed` alone, and the limit ends these answers
        assert always(results, "usage_completion_tokens") == TOKENS


@pytest.mark.parametrize("kind", ["embeddings", "cohere-rankings"])
def test_vectors(clients: Clients, checkout: Path, kind: str) -> None:
    """Texts are embedded and ranked."""
    profiled(clients, checkout, kind, where="EMBEDDER")
