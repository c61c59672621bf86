"""A program's `generate` behind a registered model: what it is given, what may come back, what its errors become."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dynamo.llm.exceptions import HttpError, http_status
from dynamo.llm.protocols import read_delta
from dynamo.llm.serving.handler import adapter
from dynamo.runtime import Context, DynamoException, EngineError, InvalidArgument, NoInstances

TOKENS = {"model": "m", "token_ids": [1, 2, 3], "stop_conditions": {"max_tokens": 5}, "eos_token_ids": [9]}
TEXT = {"model": "m", "kind": "chat", "body": {"model": "m", "messages": [], "temperature": 0.5}}


async def answer(kind: Any, generate: Callable[..., Any], payload: Any) -> list[Any]:
    """What goes onto the wire."""
    return [item async for item in adapter(kind)(generate)(payload, Context("id-1"))]


def yielding(*items: Any) -> Callable[..., AsyncIterator[Any]]:
    async def generate(request: Any) -> AsyncIterator[Any]:
        for item in items:
            yield item

    return generate


async def test_a_tokens_program_finds_every_name() -> None:
    """Those at their defaults, too, and those of older ages."""
    seen: list[Any] = []

    async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
        seen.append((request, context.id()))
        yield {"token_ids": [7]}

    assert await answer("tokens", generate, {**TOKENS, "note": "of a caller"}) == [{"token_ids": [7]}]
    request, name = seen[0]
    assert name == "id-1"
    assert request["note"] == "of a caller"
    assert request["stop_conditions"]["stop_token_ids_hidden"] == [9]
    assert request["stop_conditions"]["min_tokens"] is None
    assert request["sampling_options"]["use_beam_search"] is None
    assert (request["prefill_result"], request["annotations"], request["mdc_sum"]) == (None, [], "")


async def test_a_text_program_gets_the_body() -> None:
    """The client's own, which it may change."""
    seen: list[Any] = []

    async def generate(request: dict[str, Any], *, context: Context) -> AsyncIterator[Any]:
        seen.append(request)
        yield "bare "
        yield {"choices": [{"index": 0, "delta": {"content": "text"}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}

    assert await answer("text", generate, TEXT) == [
        ["bare ", None, None], ["text", None, None], ["", "stop", {"prompt_tokens": 3, "completion_tokens": 2}],
    ]  # fmt: skip
    assert seen == [{"model": "m", "messages": [], "temperature": 0.5}]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("tokens", {"prompt": [1]}), ("tokens", "hello"), ("tokens", {"model": 5, "token_ids": "x"}),
     ("text", {"body": 1}), ("text", {"model": "m", "messages": []}),
     ("text", {"model": 1, "kind": "chat", "body": {}})],
)  # fmt: skip
async def test_other_callers_get_what_is_yielded(kind: Any, payload: Any) -> None:
    """A program that calls the endpoint by itself: its payload and the items are nobody else's affair."""
    seen: list[Any] = []

    async def generate(request: Any) -> AsyncIterator[Any]:
        seen.append(request)
        yield {"anything": 1}
        yield 5

    assert await answer(kind, generate, payload) == [{"anything": 1}, 5]
    assert seen == [payload]


async def test_outputs_keep_their_names() -> None:
    """A frontend reads them, and a program that calls finds its own keys."""
    full = {
        "token_ids": [1, 2], "log_probs": [-1, -2.0], "top_logprobs": [[{"token_id": 1, "logprob": -1, "rank": 1}], []],
        "finish_reason": "length", "own": "x", "text": None,
    }  # fmt: skip
    (sent,) = await answer("tokens", yielding(full), TOKENS)
    assert sent["own"] == "x"
    assert read_delta(sent) == [[1, 2], "length", {"log_probs": [-1.0, -2.0], "top_logprobs": [[[1, -1.0]], []]}]
    (handed,) = await answer("tokens", yielding({"token_ids": [1], "disaggregated_params": {"a": 1}}), TOKENS)
    assert read_delta(handed)[2] == {"disaggregated_params": {"a": 1}}


async def test_a_coroutine_answers_at_once() -> None:
    """`async def` that returns its one piece."""

    async def generate(request: Any) -> dict[str, Any]:
        return {"token_ids": [1], "finish_reason": "stop"}

    (sent,) = await answer("tokens", generate, TOKENS)
    assert read_delta(sent) == [[1], "stop", None]


def raising(error: Exception) -> Callable[..., AsyncIterator[Any]]:
    async def generate(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [1]}
        raise error

    return generate


@pytest.mark.parametrize(
    ("raised", "kind", "status", "says"),
    [
        (HttpError(429, "too many"), DynamoException, 429, "too many"),
        (HttpError(404, ""), DynamoException, 404, "HTTP 404"),
        (HttpError(503, "later"), EngineError, None, "later"),
        (ValueError("boom"), InvalidArgument, None, "ValueError: boom"),
        (NoInstances("nobody"), NoInstances, None, "nobody"),
        (RuntimeError("odd"), RuntimeError, None, "odd"),
    ],
)
async def test_what_errors_become(raised: Exception, kind: type[Exception], status: int | None, says: str) -> None:
    """A status of a client's mistake is kept, `ValueError` is one; what the runtime knows passes."""
    with pytest.raises(kind, match=says) as caught:
        await answer("tokens", raising(raised), TOKENS)
    if isinstance(caught.value, DynamoException):
        assert http_status(caught.value) == status


@pytest.mark.parametrize(
    ("kind", "items", "says"),
    [
        ("tokens", [{"text": "x"}], "lacks 'token_ids'"), ("tokens", [5], "an int where a dict is meant"),
        ("text", [{"token_ids": [1]}], "lacks 'choices'"), ("text", [5], "an int where a dict is meant"),
        ("text", [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, "x"], "more text after finish_reason 'stop'"),
    ],
)  # fmt: skip
async def test_what_a_program_must_not_yield(kind: Any, items: list[Any], says: str) -> None:
    """It is told what is meant."""
    with pytest.raises(EngineError, match=says):
        await answer(kind, yielding(*items), TOKENS if kind == "tokens" else TEXT)


async def test_what_is_no_generator() -> None:
    """A function that returns a list."""
    with pytest.raises(EngineError, match="generate returned list, no async generator"):
        await answer("tokens", lambda request: [{"token_ids": [1]}], TOKENS)


async def test_the_generator_is_closed_with_its_reader() -> None:
    """Also behind both layers."""
    closed: list[bool] = []

    async def generate(request: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield {"token_ids": [1]}
        finally:
            closed.append(True)

    output = adapter("tokens")(generate)(TOKENS, Context())
    await anext(output)
    await output.aclose()
    assert closed == [True]


@pytest.mark.parametrize(("code", "message"), [(600, "x"), (-1, "x"), (True, "x"), ("404", "x"), (404, 5)])
def test_an_http_error_has_a_status_and_a_text(code: Any, message: Any) -> None:
    """NVIDIA Dynamo's rule."""
    with pytest.raises(ValueError, match="of an HttpError is"):
        HttpError(code, message)


def test_a_long_message_is_cut() -> None:
    """At 8,192 characters; its text has the status."""
    error = HttpError(400, "x" * 9000)
    assert (error.code, len(error.message), error.message[-4:]) == (400, 8192, "x...")
    assert str(HttpError(404, "gone")) == "HTTP 404: gone"


INPUTS = {"model": "m", "token_ids": [[1, 2], [3]], "mdc_sum": "x"}
TEXTS = {"model": "m", "kind": "embeddings", "body": {"model": "m", "input": ["a", "b"], "encoding_format": "base64"}}
ORIGINAL = {"embeddings": [[1.0], [2.0]], "prompt_tokens": 3}
OPENAI = {"object": "list", "data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 3}}


@pytest.mark.parametrize(("kind", "payload", "given"), [("tokens", INPUTS, INPUTS), ("text", TEXTS, TEXTS["body"])])
async def test_a_program_for_vectors(kind: Any, payload: dict[str, Any], given: dict[str, Any]) -> None:
    """It gets the tokens of all inputs, or the client's body, and answers in either form, as it likes."""
    seen: list[Any] = []

    async def generate(request: dict[str, Any]) -> AsyncIterator[Any]:
        seen.append(request)
        for item in (ORIGINAL, OPENAI, [1, b"1234"]):
            yield item

    assert await answer(kind, generate, payload) == [ORIGINAL, OPENAI, [1, b"1234"]]
    assert seen == [given]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ([0.1, 0.2], 'yields a list where vectors are meant: yield {"embeddings"'),
        ("text", "yields a str where vectors are meant"),
        ({"token_ids": [1]}, "yields a dict with 'token_ids' where vectors are meant"),
        ({"error": "out of memory"}, "out of memory"),
    ],
)
async def test_what_is_no_vector(item: Any, says: str) -> None:
    """Said where it is yielded, not by a frontend that can't read it."""
    with pytest.raises(EngineError, match=re.escape(says)):
        await answer("tokens", yielding(item), INPUTS)
