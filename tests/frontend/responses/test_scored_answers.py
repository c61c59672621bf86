"""What is told beside an answer: the prompt's log probabilities, the best of several, usage in chunks, annotations."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "ab", "max_tokens": 2, **fields}


def chunks(raw: str) -> list[dict[str, Any]]:
    """The JSON of every chunk."""
    lines = (event.removeprefix("data: ") for event in raw.split("\n\n") if event.startswith("data: {"))
    return [json.loads(line) for line in lines]


def test_a_completion_tells_its_prompts_log_probabilities_in_vllms_form(served: Any) -> None:
    """Null for the first token, an object by token id for each other one, in each choice."""
    answer = served.post(TEXT, text(prompt_logprobs=0, n=2)).json()
    expected = [None, {"98": {"logprob": -0.25, "rank": None, "decoded_token": "b"}}]
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [expected, expected]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]


def test_a_chat_tells_them_beside_its_choices(served: Any) -> None:
    """As vLLM does, whatever else is asked for."""
    answer = served.post(CHAT, chat(prompt_logprobs=1, logprobs=True, top_logprobs=1)).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5


def test_the_best_answers_are_told_first(served: Any, echo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `best_of` answers per prompt `n` are told, the likeliest first; all of them were made, and count."""
    say = echo.say

    def by_seed(payload: dict[str, Any], token: int, finish: str | None) -> Any:
        seed = payload["sampling_options"]["seed"]
        _, finish, extras = say(payload, token, finish)
        return [[97 + seed], finish, {**extras, "log_probs": [{0: -3.0, 1: -1.0, 2: -2.0}[seed]]}]

    monkeypatch.setattr(echo, "say", by_seed)
    answer = served.post(TEXT, text(best_of=3, n=2, seed=0)).json()
    assert [(c["index"], c["text"], c["logprobs"]) for c in answer["choices"]] == [(0, "bb", None), (1, "cc", None)]
    assert answer["usage"]["completion_tokens"] == 6
    one = served.post(CHAT, chat(best_of=3, seed=0)).json()
    assert [c["message"]["content"] for c in one["choices"]] == ["bb"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, text(best_of=1, n=2), "best_of"),
        (TEXT, text(best_of=2, stream=True), "best_of"),
        (CHAT, chat(prompt_logprobs=1, stream=True), "prompt_logprobs"),
        (TEXT, text(prompt=["x" * 100] * 20, prompt_logprobs=20), "prompt_logprobs"),
        (CHAT, chat(nvext={"token_data": [1 << 20]}), "nvext.token_data"),
        (CHAT, chat(logit_bias={"999999": 1}), "logit_bias"),
        (TEXT, text(prompt=["a", "b"], nvext={"token_data": [97]}), "nvext.token_data"),
    ],
)
def test_what_cannot_be_told_is_refused(served: Any, path: str, body: dict[str, Any], param: str) -> None:
    """With the field that it is about."""
    answer = served.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_an_engine_without_scores_of_prompts_is_named_as_the_cause(served: Any, echo: Any, monkeypatch: Any) -> None:
    """An answer that lacks what was asked for would look like one that has it."""
    say = echo.say
    monkeypatch.setattr(echo, "say", lambda *given: [*say(*given)[:2], None])
    for asked in ({"prompt_logprobs": 1}, {"best_of": 2}):
        answer = served.post(TEXT, text(**asked))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(asked)))


def test_each_chunk_says_the_usage_so_far(served: Any) -> None:
    """With `continuous_usage_stats`, as vLLM has it; it needs `include_usage`."""
    wanted = {"include_usage": True, "continuous_usage_stats": True}
    seen = chunks(served.post(TEXT, text(stream=True, stream_options=wanted)).text)
    assert [chunk["usage"]["completion_tokens"] for chunk in seen] == [1, 2, 2, 2]
    assert {chunk["usage"]["prompt_tokens"] for chunk in seen} == {2}
    alone = chunks(served.post(CHAT, chat(stream=True, stream_options={"continuous_usage_stats": True})).text)
    assert not any("usage" in chunk for chunk in alone)


def test_annotations_come_before_the_first_chunk(served: Any) -> None:
    """An event with a JSON string as its comment, as NVIDIA Dynamo writes them; unknown names are left out."""
    asked = {"annotations": ["token_ids", "formatted_prompt", "request_id", "llm_metrics", "token_ids"]}
    answer = served.post(CHAT, chat(stream=True, nvext=asked), headers={"x-request-id": "r-1"})
    events = answer.text.split("\n\n")
    lines = dict(event.removeprefix("event: ").split("\n: ", 1) for event in events[:3])
    prompt = json.loads(lines["formatted_prompt"])
    assert json.loads(lines["request_id"]) == "r-1"
    assert json.loads(json.loads(lines["token_ids"])) == list(prompt.encode())
    assert "hi" in prompt
    assert [event[:7] for event in events[3:5]] == ["data: {"] * 2


def test_a_prompt_may_come_as_tokens(served: Any, echo: Any) -> None:
    """`nvext.token_data` stands for the prompt, of a chat, too."""
    for path, body in ((CHAT, chat()), (TEXT, text())):
        assert served.post(path, {**body, "nvext": {"token_data": [104, 105, 33]}}).status_code == 200
        assert echo.seen[-1]["token_ids"] == [104, 105, 33]


def test_a_tier_of_service_is_answered(served: Any) -> None:
    """There is one tier here, told to those who ask, in each form of an answer."""
    assert served.post(CHAT, chat(service_tier="auto")).json()["service_tier"] == "default"
    assert {c["service_tier"] for c in chunks(served.post(CHAT, chat(service_tier="flex", stream=True)).text)} == {
        "default"
    }
    assert "service_tier" not in served.post(CHAT, chat()).json()


def test_who_waits_for_a_first_token_and_who_was_refused_is_counted(site: Any, echo: Any, within: Any) -> None:
    """Under NVIDIA Dynamo's names: `queued_requests` up to the first token, `model_rejection_total` with each 503."""
    site.worker(echo)
    echo.hold = asyncio.Event()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(site.post, TEXT, text())
        within("it waits", lambda: site.metric("queued_requests", model="m") == 1)
        site.call(echo.hold.set)
        assert asked.result(10).status_code == 200
    assert (site.metric("queued_requests", model="m"), site.metric("inflight_requests", model="m")) == (0, 0)
    refused = site.post(TEXT, text(nvext={"backend_instance_id": 5}))
    assert refused.status_code == 503
    assert site.metric("model_rejection_total", model="m") == site.metric("rejected_requests_total", model="m")


def test_an_engine_that_takes_text_can_do_none_of_it(site: Any, engines: Any) -> None:
    """It has no tokens: each is refused by its name."""
    site.worker(engines(), "m", path="test.text.generate", model_input="text")
    for fields in ({"prompt_logprobs": 0}, {"best_of": 2}, {"suffix": "x"}, {"nvext": {"token_data": [97]}}):
        answer = site.post(TEXT, text(**fields))
        name = "nvext.token_data" if "nvext" in fields else next(iter(fields))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
