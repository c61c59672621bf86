"""Clients written in Python, each in its ordinary way: see `programs` for what they do."""

from __future__ import annotations

import pytest
from tests_clients.conftest import Clients


@pytest.mark.parametrize("name", ["openai_sdk", "anthropic_sdk", "litellm_sdk", "langchain_chat"])
def test_an_sdk(clients: Clients, name: str) -> None:
    """All that the program asks is answered as its library expects."""
    clients.python(name)


@pytest.mark.parametrize("framework", ["llama_index", "instructor", "pydantic_ai", "openai_agents"])
def test_a_framework(clients: Clients, framework: str) -> None:
    """Agents call their tools, and models are filled in."""
    clients.python("frameworks", framework)
