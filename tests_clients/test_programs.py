"""Programs that ask a server: `llm` and aider."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests_clients.conftest import KEY, Clients


def test_llm(clients: Clients) -> None:
    """`llm` asks a model of its `extra-openai-models.yaml`, and streams what it says."""
    folder = clients.folder / "llm"
    folder.mkdir()
    model = {
        "model_id": "dynamo",
        "model_name": "demo",
        "api_base": clients.env["OPENAI_BASE_URL"],
        "api_key_name": "dynamo",
    }
    (folder / "extra-openai-models.yaml").write_text(json.dumps([model]))
    where: Any = {"LLM_USER_PATH": str(folder)}
    clients.run("sdks", "llm", "keys", "set", "dynamo", "--value", KEY, **where)
    assert clients.run("sdks", "llm", "-m", "dynamo", "Hello", **where).strip()
    assert clients.run(
        "sdks", "llm", "-m", "dynamo", "--no-stream", "-o", "max_tokens", "300", "Hello", **where
    ).strip()


def test_aider(clients: Clients) -> None:
    """aider asks about a file of a repository by its `openai/` models, and ends well."""
    repository = clients.folder / "repository"
    repository.mkdir()
    (repository / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    said = clients.run(
        "aider", "aider", "--model", "openai/demo", "--no-show-model-warnings", "--no-check-update", "--no-analytics",
        "--yes-always", "--no-auto-commits", "--no-gitignore", "--map-tokens", "0", "--edit-format", "ask",
        "--no-detect-urls", "--message", "What does total do?", "sums.py",
        cwd=repository, OPENAI_API_BASE=clients.env["OPENAI_BASE_URL"],
    )  # fmt: skip
    assert "Tokens:" in said
