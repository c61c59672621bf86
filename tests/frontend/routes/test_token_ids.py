"""Token ids of prompts and answers, and log probabilities that name tokens by their ids, in vLLM's words."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<think>\nHm.\n</think>\nYes.<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.fixture
def talking(site: Any, speaker: Any) -> Any:
    """A frontend whose model thinks, says something and calls a tool."""
    speaker.answer = CALL
    site.worker(speaker, tool_call_parser="hermes", reasoning_parser="qwen3", context_length=1_000_000)
    return site


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_chats_tell_all_tokens(talking: Any) -> None:
    """The prompt's stand beside the choices, those of a choice in it, thoughts and calls counted; streamed alike."""
    whole = talking.post(CHAT, {**ASK, "tools": TOOLS}).json()
    assert bytes(whole["choices"][0]["token_ids"]).decode() == CALL
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(talking.post(CHAT, {**ASK, "tools": TOOLS, "stream": True, "stream_options": options}))
    ids = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids", ())]
    assert ids == whole["choices"][0]["token_ids"]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [
        whole["prompt_token_ids"], *[None] * (len(chunks) - 1)
    ]  # fmt: skip
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(chunk["usage"]["prompt_tokens"] for chunk in chunks)


@pytest.mark.parametrize("prompt", ["hi", ["hi", "you"], [104, 105]])
def test_completions_tell_them_in_each_choice(served: Any, prompt: Any) -> None:
    """Each choice has its own prompt's and its own; an echoed prompt isn't part of an answer."""
    body = {"model": "m", "prompt": prompt, "n": 2, "max_tokens": 4, "echo": True, "return_token_ids": True}
    whole = served.post(TEXT, body).json()["choices"]
    assert [bytes(choice["prompt_token_ids"] + choice["token_ids"]).decode() for choice in whole] == [
        choice["text"] for choice in whole
    ]
    assert {len(choice["token_ids"]) for choice in whole} <= {2, 3, 4}
    prompts: dict[int, list[int]] = {}
    answers: dict[int, list[int]] = {}
    for chunk in events(served.post(TEXT, {**body, "stream": True, "stream_options": {"include_usage": True}})):
        for choice in chunk["choices"]:
            if "prompt_token_ids" in choice:
                assert choice["index"] not in prompts
                prompts[choice["index"]] = choice["prompt_token_ids"]
            answers.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
    assert prompts == {choice["index"]: choice["prompt_token_ids"] for choice in whole}
    assert answers == {choice["index"]: choice["token_ids"] for choice in whole}


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_told_unasked(talking: Any, stream: bool) -> None:
    """Without the fields, and with false, an answer has no ids; named by ids are only log probabilities."""
    for value in (None, False):
        answer = talking.post(CHAT, {**ASK, "return_token_ids": value, "stream": stream, "max_tokens": 3})
        assert "token_ids" not in answer.text
    answer = talking.post(CHAT, {**ASK, "return_token_ids": None, "return_tokens_as_token_ids": True})
    assert "token_id" not in answer.text


def test_a_scored_prompt_has_no_answer(served: Any, echo: Any) -> None:
    """Where nothing is answered, no tokens of an answer are told."""
    body = {"model": "m", "prompt": "hi", "max_tokens": 0, "echo": True, "return_token_ids": True}
    (choice,) = served.post(TEXT, body).json()["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"], choice["text"]) == ([], [104, 105], "hi")


@pytest.mark.parametrize("field", ["return_token_ids", "return_tokens_as_token_ids"])
@pytest.mark.parametrize("value", ["yes", 1, [True], {"a": True}, "x" * 100_000])
def test_other_types_are_refused(served: Any, field: str, value: Any) -> None:
    """What is no boolean is refused by name."""
    answer = served.post(CHAT, {**ASK, field: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_too_many_are_refused(talking: Any) -> None:
    """An answer that would repeat a long prompt too often is refused, since writing it keeps everybody waiting."""
    body = {"model": "m", "prompt": [97] * 2000, "n": 100, "max_tokens": 1, "return_token_ids": True}
    answer = talking.post(TEXT, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_token_ids")
    assert talking.post(TEXT, {**body, "n": 2}).status_code == 200


def test_text_engines_have_none(site: Any, echo: Any) -> None:
    """An engine that takes text is not asked: the refusal says so."""
    site.worker(echo, model_input="text", tokenizer="none")
    answer = site.post(CHAT, ASK)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
