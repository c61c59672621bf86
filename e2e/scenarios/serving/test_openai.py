"""What an application does with the OpenAI SDK, through the Service of a pipeline with two workers."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import openai
import pytest
from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import asking, pipeline, say
from openai import OpenAI

NAME, MODEL = "chat", "mock-model"
LEFT_SECONDS = 30


def test_openai(namespace: Namespace) -> None:
    """Models, chat, completions, streams, a stream that is left, and errors that say what is wrong."""
    namespace.apply(pipeline(NAME, {"engine": "mocker", "replicas": 2}, model={"name": MODEL}))
    namespace.wait_ready(NAME)
    with asking(namespace, NAME) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        _chat(client)
        _completions(client)
        _leave_a_stream(client)
        _errors(client)
        assert say(client, MODEL)


def _chat(client: OpenAI) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Count to ten."}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=10)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 10
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=10, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10
    assert len({chunk.id for chunk in chunks}) == 1


def _completions(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=5)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert all(choice.text for choice in whole.choices)
    stream = client.completions.create(model=MODEL, prompt="One", max_tokens=5, stream=True)
    assert [c.finish_reason for chunk in stream for c in chunk.choices if c.finish_reason] == ["length"]


def _leave_a_stream(client: OpenAI) -> None:
    """Whoever goes away stops the generation: the frontend has no request open any more."""
    assert _open_requests(client) == 0
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Go on."}], max_tokens=100_000, stream=True
    )
    assert next(iter(stream))
    assert _open_requests(client) == 1
    stream.close()
    wait_for("the generation ends", lambda: _open_requests(client) == 0, LEFT_SECONDS)


def _open_requests(client: OpenAI) -> int:
    text = httpx.get(str(client.base_url.join("/metrics")), timeout=20).text
    return sum(int(float(n)) for n in re.findall(r"^dynamo_frontend_inflight_requests(?:\{.*\})? (\S+)$", text, re.M))


def _errors(client: OpenAI) -> None:
    def ask(model: str = MODEL, temperature: float = 0.0) -> object:
        return client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "?"}], max_tokens=4, temperature=temperature
        )

    _refused(lambda: ask(model="other"), openai.NotFoundError, "model", "model_not_found", "other")
    _refused(lambda: ask(temperature=9), openai.BadRequestError, "temperature", "invalid_value", "temperature")
    answer = httpx.post(str(client.base_url.join("chat/completions")), content=b"{", timeout=20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def _refused(ask: Callable[[], object], kind: type[openai.APIStatusError], field: str, code: str, word: str) -> None:
    with pytest.raises(kind) as caught:
        ask()
    assert (caught.value.param, caught.value.code) == (field, code)
    assert word in caught.value.message
