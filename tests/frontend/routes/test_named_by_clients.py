"""What clients find by name: the model that a refusal is counted for, the id in an error, the only model's tokens."""

from __future__ import annotations

from typing import Any

import httpx

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
CHAT = "/v1/chat/completions"


def test_refusals_count_for_the_model_that_they_name(served: Any) -> None:
    """Where it is served; names that nobody serves are one."""
    assert served.post(CHAT, {**ASK, "temperature": 9}).status_code == 400
    assert served.post("/v1/messages", {**ASK, "max_tokens": 0}).status_code == 400
    assert served.post("/v1/responses", {"model": "m", "input": 5}).status_code == 400
    assert served.post(CHAT, {**ASK, "model": "nobody's", "temperature": 9}).status_code == 400
    for endpoint in ("chat_completions", "messages", "responses"):
        assert served.metric("requests_total", model="m", endpoint=endpoint, error_type="validation") == 1
    assert served.metric("requests_total", model="unknown_model", error_type="validation") == 1


def test_errors_of_messages_name_their_request(served: Any) -> None:
    """As Anthropic's do, beside the header."""
    answer = served.post("/v1/messages", ASK)
    assert answer.json()["request_id"] == answer.headers["request-id"]


def test_tokens_of_the_only_model(served: Any) -> None:
    """No name is needed; tools and the rest of what a template sees are counted as in a chat."""
    plain = httpx.post(f"{served.url}/tokenize", json={"messages": ASK["messages"]}).json()
    assert plain["count"] == served.post(CHAT, {**ASK, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    more = httpx.post(f"{served.url}/tokenize", json={"messages": ASK["messages"], "tools": tools}).json()
    asked = served.post(CHAT, {**ASK, "max_tokens": 1, "tools": tools}).json()
    assert more["count"] == asked["usage"]["prompt_tokens"] > plain["count"]
    text = httpx.post(f"{served.url}/detokenize", json={"tokens": plain["tokens"]}).json()["prompt"]
    assert text.endswith("Assistant:")
