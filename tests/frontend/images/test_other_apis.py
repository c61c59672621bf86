"""Images in Responses and Messages, by their SDKs, over a whole frontend and the mocker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
from tests.frontend.images.samples import data_url, png

Serve = Callable[..., Any]
IMAGE = png(280, 140)
SEEN = "I see 1 image: png of 280 x 140 pixels, 50 tokens"


def block(data: bytes) -> dict[str, Any]:
    encoded = data_url(data).partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}


def test_responses(site: Any, serve: Serve) -> None:
    """An image in a message and in a tool's output; the next turn has it still, by the stored answer's id."""
    serve(site)
    shown = {"type": "input_image", "image_url": data_url(IMAGE), "detail": "auto"}
    first: Any = [{"role": "user", "content": [{"type": "input_text", "text": "See?"}, shown]}]
    with site.client() as client:
        answer = client.responses.create(model="m", input=first, max_output_tokens=150)
        assert SEEN in answer.output_text
        again = client.responses.create(
            model="m", input="And now?", previous_response_id=answer.id, max_output_tokens=150
        )
        assert SEEN in again.output_text
        counted = client.responses.input_tokens.count(model="m", input=first)
        assert answer.usage is not None
        assert counted.input_tokens == answer.usage.input_tokens
        called: Any = [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "so"}, shown]},
        ]
        assert SEEN in client.responses.create(model="m", input=called, max_output_tokens=150).output_text


def test_messages(site: Any, serve: Serve) -> None:
    """An image in a message and in a tool's result, counted alike; streams say the same."""
    serve(site)
    turns: Any = [{"role": "user", "content": [block(IMAGE), {"type": "text", "text": "See?"}]}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "so"}, block(IMAGE)]}
    called: Any = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    with anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0, timeout=20) as client:
        answer = client.messages.create(model="m", max_tokens=150, messages=turns, system="Be brief.")
        whole = "".join(part.text for part in answer.content if part.type == "text")
        assert SEEN in whole
        with client.messages.stream(model="m", max_tokens=150, messages=turns, system="Be brief.") as stream:
            assert stream.get_final_text() == whole
        counted = client.messages.count_tokens(model="m", messages=turns, system="Be brief.")
        assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        told = client.messages.create(model="m", max_tokens=150, messages=called)
        assert SEEN in "".join(part.text for part in told.content if part.type == "text")


def test_messages_name_the_clients_field(site: Any, serve: Serve) -> None:
    """As the client counts its messages, whatever they are joined to."""
    serve(site)
    for source, param in (
        ({"type": "base64", "media_type": "image/png", "data": "####"}, "messages[1].content[1]"),
        ({"type": "base64", "media_type": "a,;base64", "data": "####"}, "messages[1].content[1]"),
        ({"type": "url", "url": "http://169.254.169.254/x.png"}, "messages[1].content[1]"),
        ({"type": "file", "file_id": "f"}, "messages[1].content[1].source"),
        ("nothing", "messages[1].content[1].source"),
    ):
        shown = [{"type": "text", "text": "x"}, {"type": "image", "source": source}]
        turns = [{"role": "user", "content": "x"}, {"role": "user", "content": shown}]
        answer = site.post("/v1/messages", {"model": "m", "max_tokens": 5, "system": "s", "messages": turns})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(f"{param}: "), answer.text


def test_responses_name_the_clients_field(site: Any, serve: Serve) -> None:
    """In this API's words."""
    serve(site)
    for part, param in (
        ({"type": "input_image", "file_id": "f"}, "input[0].content[0].image_url"),
        ({"type": "input_image", "image_url": "data:image/png;base64,="}, "input[0].content[0]"),
        ({"type": "input_file", "file_data": "x"}, "input[0].content[0]"),
        ({"type": "input_audio", "input_audio": {}}, "input[0].content[0]"),
    ):
        answer = site.post("/v1/responses", {"model": "m", "input": [{"role": "user", "content": [part]}]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
