"""Open WebUI in front of the server, set up by the variables of its documentation: in Chromium, and by its own API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from tests.fixtures_etcd import free_ports
from tests.processes import Process
from tests.waiting import eventually
from tests_clients.conftest import ENVIRONMENTS, HERE, KEY, Clients

PERSON: Final = {"name": "Ada", "email": "ada@example.com", "password": "a-long-Password-1"}
TEXT: Final = "The gate of the north tower opens at dawn."


@pytest.fixture
def web(clients: Clients) -> Iterator[httpx.Client]:
    """A client of a new Open WebUI, which asks our server for chats and for embeddings."""
    folder, (port,) = ENVIRONMENTS / "openwebui" / "bin", free_ports(1)
    env = {
        **clients.env, "PATH": f"{folder}:/usr/bin:/bin", "DATA_DIR": str(clients.folder / "data"),
        "WEBUI_SECRET_KEY": "of-a-test", "OFFLINE_MODE": "True", "ENABLE_OLLAMA_API": "False",
        "OPENAI_API_BASE_URL": clients.env["OPENAI_BASE_URL"],
        "RAG_EMBEDDING_ENGINE": "openai", "RAG_EMBEDDING_MODEL": "embed", "RAG_OPENAI_API_KEY": KEY,
        "RAG_OPENAI_API_BASE_URL": f"{clients.env['EMBEDDER']}/v1",
    }  # fmt: skip
    argv = [str(folder / "open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (
        Process("open-webui", argv, clients.folder, env),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        eventually("Open WebUI answers", lambda: answers(client), 300)
        yield client


def answers(client: httpx.Client) -> bool:
    """Say whether it is there."""
    with contextlib.suppress(httpx.HTTPError):
        return client.get("/health").is_success
    return False


def counted(url: str, endpoint: str) -> float:
    """How many requests of an API our server has answered well."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("dynamo_frontend_requests_total{") and endpoint in line]
    return sum(float(line.split()[-1]) for line in counts if 'status="success"' in line)


def test_in_a_browser(clients: Clients, web: httpx.Client) -> None:
    """The first account chats, sees that the model has thought, and has it call a tool of Open WebUI."""
    before = counted(clients.env["SERVER"], "chat_completions")
    program = str(HERE / "programs" / "open_webui_chat.py")
    variables: Any = {"EMAIL": PERSON["email"], "PASSWORD": PERSON["password"], "PYTHONPATH": str(HERE.parent)}
    said = clients.run("openwebui", "python", "-P", "-W", "ignore", program, str(web.base_url), **variables)
    chat, call = json.loads(said.splitlines()[-1])
    assert "Thought for" in chat
    assert "worker" in chat  # the mocker's words
    assert "get_current_timestamp" in call
    assert "worker" in call
    # A chat, a call and what follows its result; besides, Open WebUI asks for a title, tags and follow-ups.
    assert counted(clients.env["SERVER"], "chat_completions") - before >= 3


def test_api(clients: Clients, web: httpx.Client) -> None:
    """Its API has our model, passes chats and streams through, and answers with a file, which our server embeds."""
    token = web.post("/api/v1/auths/signup", json=PERSON).raise_for_status().json()["token"]
    web.headers["authorization"] = f"Bearer {token}"
    assert [model["id"] for model in web.get("/api/models").raise_for_status().json()["data"]] == ["demo"]
    ask: dict[str, Any] = {"model": "demo", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}]}
    usage = web.post("/api/chat/completions", json=ask).raise_for_status().json()["usage"]
    assert usage["completion_tokens"] == 20
    streamed = web.post("/api/chat/completions", json=ask | {"stream": True}).raise_for_status().text
    assert [line for line in streamed.splitlines() if line][-1] == "data: [DONE]"
    before = counted(clients.env["EMBEDDER"], "embeddings")
    file = web.post("/api/v1/files/", files={"file": ("gate.txt", TEXT)}).raise_for_status().json()["id"]
    state = f"/api/v1/files/{file}/process/status"
    eventually("the file is embedded", lambda: web.get(state).json()["status"] == "completed", 60)
    answer = web.post("/api/chat/completions", json=ask | {"files": [{"type": "file", "id": file}]})
    assert answer.raise_for_status().json()["usage"]["prompt_tokens"] > usage["prompt_tokens"] + len(TEXT) / 4
    assert counted(clients.env["EMBEDDER"], "embeddings") > before
