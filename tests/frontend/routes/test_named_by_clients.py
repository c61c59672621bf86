"""What clients find by name: the model that a refusal is counted for, the id in an error, the only model's tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import eventually

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
CHAT = "/v1/chat/completions"


def test_refusals_count_for_the_model_that_they_name(served: Any) -> None:
    """Where it is served; names that nobody serves are one."""
    assert served.post(CHAT, {**ASK, "temperature": 9}).status_code == 400
    assert served.post("/v1/messages", {**ASK, "max_tokens": 0}).status_code == 400
    assert served.post("/v1/responses", {"model": "m", "input": 5}).status_code == 400
    assert served.post(CHAT, {**ASK, "model": "nobody's", "temperature": 9}).status_code == 400
    for endpoint in ("chat_completions", "anthropic_messages", "responses"):
        assert served.metric("requests_total", model="m", endpoint=endpoint, error_type="validation") == 1
    assert served.metric("requests_total", model="unknown_model", error_type="validation") == 1


def test_errors_of_messages_name_their_request(served: Any) -> None:
    """As Anthropic's do, beside the header."""
    answer = served.post("/v1/messages", ASK)
    assert answer.json()["request_id"] == answer.headers["request-id"]


COUNT = "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", COUNT, ASK, 200), ("POST", COUNT, {**ASK, "model": "nobody"}, 404), ("POST", COUNT, {}, 400),
        ("GET", "/v1/messages", None, 405), ("PUT", COUNT, ASK, 405), ("POST", "/v1/messages/batches", {}, 404),
        ("GET", "/v1/models", None, 200), ("GET", "/v1/models/m", None, 200), ("GET", "/v1/models/nobody", None, 404),
    ],
)  # fmt: skip
def test_all_of_anthropics_api_names_its_requests(served: Any, method: str, path: str, body: Any, status: int) -> None:
    """By the header that its SDKs read, and in errors; it is the id of the logs."""
    answer = httpx.request(method, served.url + path, json=body, headers={**VERSION, "x-request-id": "mine"})
    assert (answer.status_code, answer.headers["request-id"], answer.headers["x-request-id"]) == (
        status,
        "mine",
        "mine",
    )
    if status >= 400:
        assert (answer.json()["type"], answer.json()["request_id"]) == ("error", "mine")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/nobody", CHAT])
def test_other_answers_have_no_such_header(served: Any, path: str) -> None:
    """Models are listed in OpenAI's form for clients that don't say Anthropic's version."""
    assert "request-id" not in httpx.get(served.url + path).headers


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/messages"), ("POST", COUNT), ("GET", "/v1/models")])
def test_who_has_no_key_is_told_so_in_anthropics_words(make_site: Any, tmp_path: Path, method: str, path: str) -> None:
    """Its 401 has the shape and the id that the SDK reads."""
    keys = tmp_path / "keys"
    keys.write_text("secret-1\n")
    answer = httpx.request(method, make_site(api_keys_file=str(keys)).url + path, headers=VERSION)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert answer.json()["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_refused_count_names_its_request(make_site: Any, echo: Any) -> None:
    """One caller too many is told by which id to ask."""
    site = make_site(max_requests_per_client=1)
    site.worker(echo)
    with site.socket() as sock:
        sock.sendall(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{" % COUNT.encode())
        answer = eventually("the caller has one too many", lambda: _refused(site))
    assert answer.json()["request_id"] == answer.headers["request-id"]


def _refused(site: Any) -> httpx.Response | None:
    answer: httpx.Response = site.post(COUNT, ASK)
    return answer if answer.status_code == 429 else None


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", COUNT, "/v1/models"])
@pytest.mark.parametrize(
    ("given", "own"),
    [
        ({"x-dynamo-request-id": "7f6e5d4c-0000-4000-8000-000000000001"}, "7f6e5d4c-0000-4000-8000-000000000001"),
        ({"x-dynamo-request-id": "theirs", "x-request-id": "mine"}, "mine"),
        ({"x-dynamo-request-id": "x" * 129}, None),
        ({"x-dynamo-request-id": "a b"}, None),
    ],
)
def test_ids_by_the_name_of_older_clients(served: Any, path: str, given: dict[str, str], own: str | None) -> None:
    """NVIDIA Dynamo's `x-dynamo-request-id` stands in for `x-request-id`, within the same bounds."""
    rid = httpx.request("GET" if path == "/v1/models" else "POST", served.url + path, headers=given).headers[
        "x-request-id"
    ]
    assert rid == own or (own is None and re.fullmatch("[0-9a-f]{32}", rid))


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
