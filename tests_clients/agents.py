"""Coding agents, each as its own documentation has it ask another server, and the repositories that they repair."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests_clients.conftest import KEY, Clients

AGENTS: Final = ("claude", "codex", "opencode")
MODEL: Final = "coder"
PATIENCE: Final = 300.0
PROVIDER: Final = "model_providers.dynamo"


def broken(folder: Path, number: int) -> Path:
    """Write a repository whose test fails; the file that is wrong, in another way for each number."""
    folder.mkdir(parents=True)
    path = folder / "sums.py"
    path.write_text(
        f'"""Sums."""\n\n\ndef total(a, b):\n    """Add two numbers, and {number}."""\n    return a - b - {number}\n'
    )
    (folder / "test_sums.py").write_text(
        "import unittest\n\nimport sums\n\n\nclass Sums(unittest.TestCase):\n    def test_total(self):\n"
        f"        self.assertEqual(sums.total(2, 3), 5 + {number})\n"
    )
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    return path


def repaired(path: Path) -> bool:
    """Say whether the repository's test passes."""
    argv = [sys.executable, "-B", "-m", "unittest", "-q"]
    return subprocess.run(argv, cwd=path.parent, capture_output=True, check=False, timeout=60).returncode == 0


def repair(clients: Clients, agent: str, path: Path) -> str:
    """Have an agent repair a file; what it said."""
    ask = f"Repair {path} so that its unit test passes."
    words = {"claude": claude, "codex": codex, "opencode": opencode}[agent](clients, path, ask)
    url = clients.env["SERVER"]
    return clients.run("node", *words, within=PATIENCE, cwd=path.parent, **SETTINGS[agent], ANTHROPIC_BASE_URL=url)


SETTINGS: Final[dict[str, dict[str, str]]] = {
    "claude": {
        "ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_API_KEY": "", "ANTHROPIC_MODEL": MODEL,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    },
    "codex": {"DYNAMO_API_KEY": KEY},
    "opencode": {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
}  # fmt: skip


def claude(clients: Clients, path: Path, ask: str) -> list[str]:
    """Return Claude Code's command: its wire is Messages."""
    return ["claude", "-p", ask, "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Edit,Read"]


def codex(clients: Clients, path: Path, ask: str) -> list[str]:
    """Return Codex' command: its wire is Responses."""
    provider = (
        f'{{name="Dynamo", base_url="{clients.env["SERVER"]}/v1", env_key="DYNAMO_API_KEY", wire_api="responses"}}'
    )
    return [
        "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", MODEL,
        "-c", 'model_provider="dynamo"', "-c", f"{PROVIDER}={provider}", ask,
    ]  # fmt: skip


def opencode(clients: Clients, path: Path, ask: str) -> list[str]:
    """Return opencode's command, once its settings are written: its wire is chat completions."""
    limit = {"context": 200_000, "output": 8_192}
    provider: Any = {
        "npm": "@ai-sdk/openai-compatible", "name": "Dynamo", "models": {MODEL: {"name": MODEL, "limit": limit}},
        "options": {"baseURL": f"{clients.env['SERVER']}/v1", "apiKey": KEY},
    }  # fmt: skip
    (path.parent / "opencode.json").write_text(json.dumps({"provider": {"dynamo": provider}}))
    return ["opencode", "run", "-m", f"dynamo/{MODEL}", ask]
