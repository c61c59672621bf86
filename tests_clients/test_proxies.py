"""LiteLLM's proxy in front of the server, set up by its `config.yaml`."""

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
from tests_clients.conftest import ENVIRONMENTS, KEY, Clients

MASTER: Final = "sk-of-the-proxy"
ASK: Final[dict[str, Any]] = {"model": "ours", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def proxy(clients: Clients) -> Iterator[httpx.Client]:
    """A client of the proxy, which asks our server for the model `ours`."""
    address = {"api_base": clients.env["OPENAI_BASE_URL"], "api_key": KEY}
    models = [{"model_name": "ours", "litellm_params": {"model": "hosted_vllm/demo", **address}}]
    config = clients.folder / "config.yaml"
    config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": MASTER}}))
    folder, (port,) = ENVIRONMENTS / "sdks" / "bin", free_ports(1)
    argv = [str(folder / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    env = {**clients.env, "PATH": f"{folder}:/usr/bin:/bin", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (
        Process("litellm", argv, clients.folder, env),
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {MASTER}"}, timeout=120
        ) as client,
    ):
        eventually("the proxy answers", lambda: answers(client), 300)
        yield client


def answers(client: httpx.Client) -> bool:
    """Say whether the proxy is there."""
    with contextlib.suppress(httpx.HTTPError):
        return client.get("/health/liveliness").is_success
    return False


def test_litellm_proxy(proxy: httpx.Client) -> None:
    """Chats, whole and streamed, in OpenAI's form, and in Anthropic's by the proxy's own translation."""
    whole = proxy.post("/v1/chat/completions", json=ASK).raise_for_status().json()
    assert whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] == 20
    streamed = proxy.post("/v1/chat/completions", json=ASK | {"stream": True}).raise_for_status().text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    message = proxy.post("/v1/messages", json=ASK).raise_for_status().json()
    assert message["content"][0]["text"]
    wrong = proxy.post("/v1/chat/completions", json=ASK | {"temperature": 9})
    assert wrong.status_code == 400
    assert "temperature" in wrong.text
