"""Clients written for Node, each in its ordinary way: see `node` for what they do."""

from __future__ import annotations

import shutil

import pytest
from tests_clients.conftest import ENVIRONMENTS, HERE, Clients


@pytest.mark.parametrize("name", ["openai_sdk", "anthropic_sdk", "ai_sdk", "langchain"])
def test_an_sdk(clients: Clients, name: str) -> None:
    """All that the program asks is answered as its library expects."""
    program = ENVIRONMENTS / "node" / f"{name}.mjs"  # modules are looked for beside it
    shutil.copy(HERE / "node" / program.name, program)
    clients.run("node", "node", str(program))
