"""Clients generated from the `/openapi.json` of a server, and what linters say of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import httpx
import pytest
from tests_clients.conftest import ENVIRONMENTS, HERE, Clients

FILE: Final = "openapi.json"


@pytest.fixture
def described(clients: Clients) -> Path:
    """The description, as a file."""
    path = clients.folder / FILE
    path.write_bytes(httpx.get(f"{clients.env['SERVER']}/{FILE}").raise_for_status().content)
    return path


def test_linters(clients: Clients, described: Path) -> None:
    """No error and no warning by the rules that redocly and spectral recommend."""
    for name in ("redocly.yaml", ".spectral.yaml"):
        shutil.copy(HERE / "node" / name, clients.folder)
    said = clients.run("node", "redocly", "lint", FILE, "--format", "json", REDOCLY_TELEMETRY="off")
    assert '"warnings": 0' in said
    clients.run("node", "spectral", "lint", FILE, "--fail-severity", "hint")


def test_python(clients: Clients, described: Path) -> None:
    """openapi-python-client: chats, a stream's events, errors, stored responses, embeddings, models."""
    words = (
        "generate",
        "--path",
        str(described),
        "--meta",
        "none",
        "--output-path",
        "dynamo_client",
        "--fail-on-warning",
    )
    clients.run("generators", "openapi-python-client", *words)
    program = shutil.copy(HERE / "programs" / "generated_client.py", clients.folder)
    clients.run("generators", "python", str(program))


def test_typescript(clients: Clients, described: Path) -> None:
    """openapi-typescript and openapi-fetch, compiled as strictly as it goes: the same, and tools."""
    folder = ENVIRONMENTS / "node" / "typed"  # modules are looked for above it
    folder.mkdir(exist_ok=True)
    for name in ("typed.ts", "tsconfig.json"):
        shutil.copy(HERE / "node" / name, folder)
    clients.run("node", "openapi-typescript", str(described), "-o", str(folder / "schema.d.ts"))
    clients.run("node", "tsc", "-p", str(folder))
    clients.run("node", "node", str(folder / "built" / "typed.js"))


def test_go(clients: Clients, described: Path) -> None:
    """oapi-codegen: chats, a stream's events, errors, stored responses, embeddings, models."""
    folder = clients.folder / "go"
    shutil.copytree(HERE / "go", folder)
    (folder / "api").mkdir()
    words = ("-generate", "types,client,skip-prune", "-package", "api", "-o", "api/api.gen.go", str(described))
    clients.run("go", "oapi-codegen", *words, cwd=folder)
    assert "generated" in clients.go("run", "./generated_client", cwd=folder)
