"""Clients written in Go, each in its ordinary way: see `go` for what they do."""

from __future__ import annotations

import shutil

from tests_clients.conftest import HERE, Clients


def test_openai_go(clients: Clients) -> None:
    """Chats, streams, tools, stored Responses, embeddings, models and errors of `openai-go`."""
    folder = clients.folder / "go"
    shutil.copytree(HERE / "go", folder)
    assert "openai-go" in clients.go("run", "./openai", cwd=folder)
