"""`/v1/completions` and chat options: prompts, choices, echo, log probabilities, stops, text engines."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from dynamo.llm.protocols import delta

TEXT = "/v1/completions"


def events(raw: str) -> list[dict[str, Any]]:
    """The JSON of every event but `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def texts(raw: str) -> dict[int, str]:
    """Per choice, the text of a completion stream."""
    results: dict[int, str] = {}
    for event in events(raw):
        for choice in event["choices"]:
            results[choice["index"]] = results.get(choice["index"], "") + choice["text"]
    return results


def test_defaults_to_16_tokens(served: Any) -> None:
    """Without max_tokens a completion has 16 tokens at most."""
    answer = served.post(TEXT, {"model": "m", "prompt": "x" * 40}).json()
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("x" * 16, 16)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", ["ab"]), (["ab", "cd"], ["ab", "cd"]), ([97, 98], ["ab"]), ([[97, 98], [99]], ["ab", "c"])],
)
@pytest.mark.parametrize("stream", [False, True])
def test_forms_of_prompt(served: Any, prompt: Any, expected: list[str], stream: bool) -> None:
    """A string, strings, token ids and lists of token ids give one choice each, in order."""
    for length in {len(entry) for entry in expected}:
        answer = served.post(TEXT, {"model": "m", "prompt": prompt, "max_tokens": length, "stream": stream})
        by_index = texts(answer.text) if stream else {c["index"]: c["text"] for c in answer.json()["choices"]}
        assert [by_index[i][: len(entry)] for i, entry in enumerate(expected)] == [entry[:length] for entry in expected]


def test_several_choices_each(served: Any, echo: Any) -> None:
    """`n` choices per prompt, prompts counted once, different seeds."""
    answer = served.post(TEXT, {"model": "m", "prompt": ["ab", "c"], "n": 2, "max_tokens": 1, "seed": 5}).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "a"), (1, "a"), (2, "c"), (3, "c")]
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    assert sorted(request["sampling_options"]["seed"] for request in echo.seen) == [5, 5, 6, 6]


def test_several_chat_choices(served: Any) -> None:
    """Chat answers `n` choices, whole and as a stream."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 4}
    whole = served.post("/v1/chat/completions", body).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    seen = events(served.post("/v1/chat/completions", {**body, "stream": True}).text)
    assert {c["index"] for e in seen for c in e["choices"] if c["finish_reason"]} == {0, 1, 2}
    assert sum(c["delta"].get("role") == "assistant" for e in seen for c in e["choices"]) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_echo(served: Any, stream: bool) -> None:
    """`echo` puts the prompt before the answer."""
    answer = served.post(TEXT, {"model": "m", "prompt": ["ab", "c"], "echo": True, "max_tokens": 1, "stream": stream})
    by_index = texts(answer.text) if stream else {c["index"]: c["text"] for c in answer.json()["choices"]}
    assert by_index == {0: "aba", 1: "cc"}


def test_completion_logprobs(served: Any) -> None:
    """Tokens, their values, alternatives and offsets."""
    body = {"model": "m", "prompt": "hi", "max_tokens": 2, "logprobs": 2}
    logprobs = served.post(TEXT, body).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["h", "i"], "token_logprobs": [-0.5, -0.5], "text_offset": [0, 1],
        "top_logprobs": [{"h": -0.5, "A": -1.5}, {"i": -0.5, "A": -1.5}],
    }  # fmt: skip


def test_echo_with_logprobs(served: Any) -> None:
    """The prompt's tokens come first, the first without a value."""
    body = {"model": "m", "prompt": "hi", "max_tokens": 1, "logprobs": 0, "echo": True}
    choice = served.post(TEXT, body).json()["choices"][0]
    assert choice["text"] == "hih"
    assert choice["logprobs"]["tokens"] == ["h", "i", "h"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(served: Any, stream: bool) -> None:
    """Each token with its bytes, also where it is only half a character."""
    body = {
        "model": "m", "messages": [{"role": "user", "content": "é"}], "logprobs": True, "top_logprobs": 1,
        "max_tokens": 30, "stream": stream,
    }  # fmt: skip
    answer = served.post("/v1/chat/completions", body)
    if stream:
        content = [
            t for e in events(answer.text) for c in e["choices"] for t in (c["logprobs"] or {}).get("content", [])
        ]
    else:
        content = answer.json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 30
    raw = bytes(b for token in content for b in token["bytes"])
    assert "é".encode() in raw
    assert all(len(token["top_logprobs"]) == 1 and token["logprob"] == -0.5 for token in content)


def test_engine_without_logprobs_is_refused(site: Any, engines: Any) -> None:
    """Log probabilities that the engine can't give are an error, not silence."""

    class Silent(engines):  # type: ignore[misc]
        def say(self, payload: dict[str, Any], token: int, finish: str | None) -> Any:
            return delta([token], finish)

    site.worker(Silent())
    for stream in (False, True):
        answer = site.post(TEXT, {"model": "m", "prompt": "hi", "logprobs": 1, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
        assert "log probabilities" in answer.json()["error"]["message"]


def test_earliest_stop_string_in_the_text_wins(served: Any, echo: Any, within: Any) -> None:
    """Whatever their order in the request, the stop string that comes first in the text ends it."""
    body = {"model": "m", "prompt": "one two three", "max_tokens": 50, "stop": ["three", "two"]}
    answer = served.post(TEXT, body).json()
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("one ", "stop")
    assert answer["choices"][0]["stop_reason"] == "two"
    streamed = served.post(TEXT, {**body, "stream": True, "include_stop_str_in_output": True})
    assert texts(streamed.text) == {0: "one two"}
    within("the engine was told to stop", lambda: echo.running == 0)
    assert echo.cancelled == 2


def test_nvext_and_top_level_extras_reach_the_engine(served: Any, echo: Any) -> None:
    """vLLM's and Dynamo's fields are honoured in both places."""
    served.post(TEXT, {"model": "m", "prompt": "x", "max_tokens": 9, "nvext": {"ignore_eos": True, "top_k": 5}})
    served.post(TEXT, {"model": "m", "prompt": "x", "max_tokens": 9, "ignore_eos": True, "min_tokens": 2, "min_p": 0.1})
    first, second = echo.seen
    assert first["stop_conditions"]["ignore_eos"]
    assert first["sampling_options"]["top_k"] == 5
    assert second["stop_conditions"] == {"max_tokens": 9, "min_tokens": 2, "ignore_eos": True}
    assert second["sampling_options"]["min_p"] == 0.1


class Speaker:
    """A text engine: says the body's own words."""

    def __call__(self, incoming: Any) -> None:
        body, kind = incoming.payload["body"], incoming.payload["kind"]
        said = body["prompt"] if kind == "completions" else body["messages"][-1]["content"]
        for word in said.split():
            incoming.send(delta(word + " "))
        incoming.send(delta([], "stop", {"prompt_tokens": 7, "completion_tokens": 3}))
        incoming.finish()


def test_text_engines(site: Any) -> None:
    """A model that takes text gets the body as it came; its own counts are the usage."""
    site.worker(Speaker(), model_input="text", tokenizer="none")
    with site.client() as client:
        chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a b c"}])
        assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == ("a b c ", "stop")
        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (7, 3)
        many = client.completions.create(model="m", prompt=["a b", "c"], n=2)
        assert [c.text for c in many.choices] == ["a b ", "a b ", "c ", "c "]
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model="m", prompt=[1, 2])
        assert refused.value.param == "prompt"


def test_tokenize_and_detokenize(served: Any) -> None:
    """Tokens of a prompt or of messages, and back."""
    made = served.post("/tokenize", {"model": "m", "prompt": "hé", "return_token_strs": True}).json()
    assert (made["count"], made["max_model_len"]) == (3, 1024)
    back = served.post("/detokenize", {"model": "m", "tokens": made["tokens"]}).json()
    assert back == {"prompt": "hé"}
    chat = served.post("/tokenize", {"model": "m", "messages": [{"role": "user", "content": "hé"}]}).json()
    assert chat["count"] > 3


def test_models(served: Any, echo: Any) -> None:
    """The list, one model with slashes in its id, and a missing one."""
    served.worker(echo, "org/name")
    listed = httpx.get(served.url + "/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["m", "org/name"]
    answer = httpx.get(served.url + "/v1/models/org/name").json()
    assert (answer["id"], answer["context_window"], answer["max_model_len"]) == ("org/name", 1024, 1024)
    assert httpx.get(served.url + "/v1/models/org/nome").status_code == 404


def test_openapi_describes_hot_and_cold_routes(site: Any) -> None:
    """The description has every route, and the fields of the hot ones."""
    described = httpx.get(site.url + "/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health"} <= set(described["paths"])
    assert "temperature" in described["components"]["schemas"]["ChatRequest"]["properties"]
    assert httpx.get(site.url + "/docs").status_code == 200


def test_cors_by_flag(make_site: Any, served: Any) -> None:
    """Only the origins of the flag are allowed, on answers, errors and preflights; none without it."""
    open_site = make_site(cors_origin=["https://a.example"])
    asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
    preflight = httpx.options(open_site.url + "/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    for path in ("/health", "/v1/models"):
        answer = httpx.get(open_site.url + path, headers={"origin": "https://a.example"})
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
    other = httpx.get(open_site.url + "/health", headers={"origin": "https://b.example"})
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in httpx.get(served.url + "/health", headers=asked).headers


def test_a_prompt_is_scored_without_an_answer(served: Any) -> None:
    """With `max_tokens: 0` and `echo` the log probabilities of the prompt come alone, as harnesses ask for them."""
    asked = {"model": "m", "prompt": ["abc", "de"], "max_tokens": 0, "echo": True, "logprobs": 1}
    body = served.post("/v1/completions", asked).json()
    assert [choice["text"] for choice in body["choices"]] == ["abc", "de"]
    first = body["choices"][0]["logprobs"]
    assert (first["tokens"], first["token_logprobs"]) == (["a", "b", "c"], [None, -0.25, -0.25])
    assert (first["text_offset"], body["choices"][0]["finish_reason"]) == ([0, 1, 2], "length")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 0)
    bare = served.post("/v1/completions", {"model": "m", "prompt": "abc", "max_tokens": 0}).json()
    assert (bare["choices"][0]["text"], bare["usage"]["completion_tokens"]) == ("", 0)
    streamed = served.post("/v1/completions", {"model": "m", "prompt": "abc", "max_tokens": 0, "stream": True})
    assert (streamed.status_code, streamed.json()["error"]["param"]) == (400, "max_tokens")
