"""`/v1/embeddings` over a whole frontend: forms, errors, bounds, loss of workers, clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from typing import Any

import httpx
import openai
import pytest

from dynamo.llm.processing.embeddings import KIND, MOST_INPUTS, numbers_of, packed
from dynamo.runtime.errors import EngineShutdown
from dynamo.runtime.request_plane.server import Incoming

URL = "/v1/embeddings"
ONES: dict[str, Any] = {"model": "v", "input": "ab"}


class Lengths:
    """A tokens engine whose vectors say how many tokens their input has, and which comes first; the last is first."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.cancelled = 0
        self.hold: asyncio.Event | None = None

    def __call__(self, incoming: Incoming) -> None:
        self.seen.append(incoming.payload)
        task = asyncio.get_running_loop().create_task(self._speak(incoming))

        def cancel() -> None:
            self.cancelled += 1
            task.cancel()

        incoming.on_cancel(cancel)

    async def _speak(self, incoming: Incoming) -> None:
        if self.hold is not None:
            await self.hold.wait()
        inputs = incoming.payload["token_ids"]
        for index in reversed(range(len(inputs))):
            incoming.send([index, vector(inputs[index])])
        incoming.finish()


def vector(ids: list[int]) -> bytes:
    return packed([float(len(ids)), float(ids[0]), 0.1])


@pytest.fixture
def lengths() -> Lengths:
    """An engine for `site.worker`."""
    return Lengths()


@pytest.fixture
def served(site: Any, lengths: Lengths) -> Any:
    """A frontend with one worker that makes vectors, model `v`, of 8 tokens of context."""
    site.worker(lengths, "v", model_types=["embedding"], context_length=8)
    return site


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("ab", [[97, 98]]), (["ab", "c"], [[97, 98], [99]]), ([5, 6, 7], [[5, 6, 7]]), ([[5], [6, 7]], [[5], [6, 7]])],
)
@pytest.mark.parametrize("form", ["float", "base64", None])
def test_the_sdk_gets_vectors_for_each_form_of_input(
    served: Any, lengths: Lengths, given: Any, tokens: list[list[int]], form: Any
) -> None:
    """In the order of the inputs, by one request to the worker; None is what the SDK asks by default (base64)."""
    more = {} if form is None else {"encoding_format": form}
    with served.client() as client:
        answer = client.embeddings.create(model="v", input=given, **more)
    expected = [numbers_of(vector(ids)) for ids in tokens]
    found = [one.embedding for one in answer.data]
    if form == "base64":
        found = [numbers_of(base64.b64decode(str(one))) for one in found]
    assert found == expected
    assert ([one.index for one in answer.data], answer.object, answer.model) == ([*range(len(tokens))], "list", "v")
    assert {one.object for one in answer.data} == {"embedding"}
    count = sum(map(len, tokens))
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)
    assert [one["token_ids"] for one in lengths.seen] == [tokens]


def test_a_whole_answer_is_openai_s(served: Any) -> None:
    """Numbers by default, as OpenAI's API has it; dimensions and user are taken, the first goes to the engine."""
    answer = served.post(URL, {**ONES, "user": "u"}, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": numbers_of(vector([97, 98]))}],
        "model": "v", "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }  # fmt: skip
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.headers["x-request-id"] == "mine"


def test_dimensions_reach_the_engine(served: Any, lengths: Lengths) -> None:
    """Only where they are given: what to do with them is the engine's to say."""
    for more in ({}, {"dimensions": 2}):
        assert served.post(URL, {**ONES, **more}).status_code == 200
    assert [one.get("dimensions") for one in lengths.seen] == [None, 2]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "a"}, "model", "missing_required_parameter"),
        ({"model": "v"}, "input", "missing_required_parameter"),
        ({"model": "v", "input": []}, "input", "invalid_value"),
        ({"model": "v", "input": ""}, "input", "invalid_value"),
        ({"model": "v", "input": ["a", ""]}, "input", "invalid_value"),
        ({"model": "v", "input": ["a"] * (MOST_INPUTS + 1)}, "input", "invalid_value"),
        ({"model": "v", "input": ["a", 5]}, "input", "invalid_value"),
        ({"model": "v", "input": {"text": "a"}}, "input", "invalid_type"),
        ({"model": "v", "input": [1.5]}, "input[0]", "invalid_type"),
        ({"model": "v", "input": [99999]}, "input", "invalid_value"),
        ({"model": "v", "input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"model": "v", "input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({**ONES, "nvext": {"annotations": ["query_instance_id"]}}, "nvext.annotations", "unsupported_value"),
        ({"model": "v", "input": ["ok", "123456789"]}, "input", "context_length_exceeded"),
        ({"model": "v", "input": [[1] * 9]}, "input", "context_length_exceeded"),
    ],
)
def test_what_is_wrong_is_named(served: Any, lengths: Lengths, body: Any, param: str, code: str) -> None:
    """400 in OpenAI's form, before any worker hears of it; the SDK raises its `BadRequestError`."""
    answer = served.post(URL, body)
    assert answer.status_code == 400, answer.text
    said = error(answer)
    assert (said["param"], said["code"], said["type"]) == (param, code, "invalid_request_error"), said
    assert lengths.seen == []


def test_inputs_are_cut_at_their_beginning(served: Any, lengths: Lengths) -> None:
    """`truncate_prompt_tokens` leaves the end of each input, also of one that the context hasn't room for."""
    answer = served.post(URL, {**ONES, "input": ["abc", "d"], "truncate_prompt_tokens": 2}).json()
    assert answer["usage"]["prompt_tokens"] == 3
    assert lengths.seen[-1]["token_ids"] == [[98, 99], [100]]
    assert served.post(URL, {**ONES, "input": [[97, 98, 99]], "truncate_prompt_tokens": 1}).status_code == 200
    assert lengths.seen[-1]["token_ids"] == [[99]]


def test_an_input_of_just_the_context_fits(served: Any) -> None:
    """There is no answer to leave room for; one token more says which input it was, and both counts."""
    assert served.post(URL, {"model": "v", "input": ["1", "12345678"]}).status_code == 200
    said = error(served.post(URL, {"model": "v", "input": ["1", "123456789"]}))
    assert "maximum context length is 8 tokens, but input 1 has 9 tokens" in said["message"]


def test_models_that_don_t_answer_here_are_told_apart(served: Any, engines: Any) -> None:
    """404 either way, with the route and the models that do; the SDK raises its `NotFoundError`."""
    served.worker(engines(), "m")
    with served.client() as client:
        with pytest.raises(openai.NotFoundError, match=r"'m' doesn't answer POST /v1/embeddings.*: 'v'"):
            client.embeddings.create(model="m", input="a")
        with pytest.raises(
            openai.NotFoundError, match=r"'v' doesn't answer POST /v1/chat/comp.*it answers POST /v1/emb"
        ):
            client.chat.completions.create(model="v", messages=[{"role": "user", "content": "a"}])
        with pytest.raises(openai.NotFoundError, match="'w' does not exist"):
            client.embeddings.create(model="w", input="a")
    said = error(served.post("/v1/completions", {"model": "v", "prompt": "a"}))
    assert (said["param"], said["code"]) == ("model", "model_not_found")
    types = {one["id"]: one["types"] for one in httpx.get(f"{served.url}/v1/models").json()["data"]}
    assert types == {"v": ["embedding"], "m": ["chat", "completions"]}


def test_without_any_such_model_the_answer_says_so(site: Any, engines: Any) -> None:
    """Nobody is sent to look for another name."""
    site.worker(engines(), "m")
    answer = site.post(URL, {"model": "m", "input": "a"})
    assert (answer.status_code, "No model here answers POST /v1/embeddings" in answer.text) == (404, True)


def test_one_name_may_be_served_by_workers_of_both_kinds(site: Any, engines: Any, lengths: Lengths) -> None:
    """Each request goes to those that can answer it; when they have left, the rest doesn't make it a wrong route."""
    chats = engines()
    site.worker(chats, "m")
    worker = site.worker(lengths, "m", model_types=["embedding"], path="test.vectors.generate")
    for _ in range(8):
        assert site.post(URL, {"model": "m", "input": "a"}).status_code == 200
        assert site.post("/v1/completions", {"model": "m", "prompt": "a", "max_tokens": 1}).status_code == 200
    assert (len(lengths.seen), len(chats.seen)) == (8, 8)
    described = httpx.get(f"{site.url}/v1/models/m").json()
    assert described["types"] == ["chat", "completions", "embedding"]
    site.stop_worker(worker)
    answer = site.post(URL, {"model": "m", "input": "a"})
    assert (answer.status_code, error(answer)["code"]) == (503, "no_instances"), answer.text


def test_an_engine_that_takes_text_gets_all_inputs_and_counts(site: Any) -> None:
    """OpenAI's own answer is read, in any order, with either form of vectors; token ids are refused."""
    seen = []

    def answers(incoming: Incoming) -> None:
        seen.append(incoming.payload)
        data = [
            {"object": "embedding", "index": 1, "embedding": [3.0, 4.0]},
            {"object": "embedding", "index": 0, "embedding": base64.b64encode(packed([1.0, 2.0])).decode()},
        ]
        incoming.send({"object": "list", "data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})
        incoming.finish()

    site.worker(answers, "t", model_types=["embedding"], model_input="text", tokenizer="none")
    answer = site.post(URL, {"model": "t", "input": ["a", "b"], "dimensions": 2, "stop": 5}).json()
    assert [one["embedding"] for one in answer["data"]] == [[1.0, 2.0], [3.0, 4.0]]
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    body = {"model": "t", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 2}
    assert seen == [{"model": "t", "kind": KIND, "body": body}]
    refused = site.post(URL, {"model": "t", "input": [1, 2]})
    assert (refused.status_code, error(refused)["code"]) == (400, "unsupported_value")


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "gave 0 vectors for 1 inputs"), ([[1, b"1234"]], "input 1 of 1"), ([[0, b""]], "input 0 of 1"),
        ([[0, "text"]], "can't be read"), ([{"data": [{"index": 0}]}], "can't be read"), ([7], "can't be read"),
    ],
)  # fmt: skip
def test_an_engine_that_gives_something_else_fails_the_request(site: Any, items: list[Any], said: str) -> None:
    """500 that says what came; the next request is not harmed."""

    def answers(incoming: Incoming) -> None:
        for item in items:
            incoming.send(item)
        incoming.finish()

    site.worker(answers, "v", model_types=["embedding"])
    answer = site.post(URL, ONES)
    assert (answer.status_code, error(answer)["code"]) == (500, "engine_error")
    assert said in error(answer)["message"]


def test_a_lost_worker_costs_nothing(site: Any, lengths: Lengths) -> None:
    """What it had given is thrown away, and all inputs go to another one, whatever the migration limit."""
    tried = []

    def dies(incoming: Incoming) -> None:
        tried.append(1)
        incoming.send([0, packed([9.0])])
        incoming.fail(EngineShutdown("gone"))

    site.worker(dies, "v", model_types=["embedding"])
    site.worker(lengths, "v", model_types=["embedding"], path="test.second.generate", context_length=1024)
    answers = [site.post(URL, {"model": "v", "input": ["ab", "c"]}).json() for _ in range(4)]
    expected = [numbers_of(vector([97, 98])), numbers_of(vector([99]))]
    assert [[one["embedding"] for one in answer["data"]] for answer in answers] == [expected] * 4
    assert tried


def test_a_client_that_leaves_frees_the_engine(served: Any, lengths: Lengths, within: Any) -> None:
    """Its request is cancelled at the worker, and counted as cancelled."""
    lengths.hold = asyncio.Event()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{served.url}{URL}", json=ONES, timeout=0.5)
    within("the engine was told", lambda: lengths.cancelled == 1)
    within("it is counted", lambda: served.metric("requests_total", endpoint="embeddings", error_type="cancelled") == 1)
    assert served.metric("model_cancellation_total", model="v") == 1
    assert served.metric("inflight_requests", model="v") == 0


def test_a_deadline_is_a_504_that_says_whose_it_was(served: Any, lengths: Lengths, within: Any) -> None:
    """By the request's own header; the worker stops."""
    lengths.hold = asyncio.Event()
    answer = served.post(URL, ONES, headers={"x-request-timeout-ms": "300"})
    assert (answer.status_code, error(answer)["code"]) == (504, "deadline")
    assert "x-request-timeout-ms" in error(answer)["message"]
    within("the engine was told", lambda: lengths.cancelled == 1)


def test_metrics_are_those_of_the_other_routes(served: Any) -> None:
    """Requests by endpoint and outcome, prompt tokens, time; no tokens are produced."""
    assert served.post(URL, {"model": "v", "input": ["ab", "c"]}).status_code == 200
    assert served.post(URL, {"model": "v", "input": ""}).status_code == 400
    ok = {"model": "v", "endpoint": "embeddings", "request_type": "unary", "status": "success"}
    assert served.metric("requests_total", **ok) == 1
    assert served.metric("requests_started_total", model="v", endpoint="embeddings") == 1
    assert served.metric("requests_total", endpoint="embeddings", error_type="validation") == 1
    assert served.metric("input_sequence_tokens_sum", model="v") == 3
    assert served.metric("embedding_latency_seconds_count", model="v") == 1
    assert served.metric("request_duration_seconds_count", model="v") == 1
    assert served.metric("output_tokens_total", model="v") == 0


def test_bounds_hold_here_too(make_site: Any, lengths: Lengths, within: Any) -> None:
    """Each input counts as a request: the last request that comes in may be large, then others wait for its end."""
    site = make_site(max_requests_per_model=2)
    site.worker(lengths, "v", model_types=["embedding"])
    lengths.hold = asyncio.Event()
    with httpx.Client(base_url=site.url, timeout=20) as client:
        first: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: first.append(client.post(URL, json={"model": "v", "input": ["a"] * 9}))
        )
        thread.start()
        within("it is at the worker", lambda: len(lengths.seen) == 1)
        refused = site.post(URL, ONES)
        assert (refused.status_code, error(refused)["code"]) == (503, "model_full")
        assert refused.headers["retry-after"]
        site.call(lengths.hold.set)
        thread.join(20)
    assert first[0].status_code == 200
    assert site.post(URL, ONES).status_code == 200


def test_busy_workers_refuse_as_on_other_routes(make_site: Any, lengths: Lengths, within: Any) -> None:
    """Prompt tokens of vectors count for the threshold."""
    site = make_site(active_prefill_tokens_threshold=3)
    site.worker(lengths, "v", model_types=["embedding"])
    lengths.hold = asyncio.Event()
    with site.client() as client:
        thread = threading.Thread(target=lambda: client.embeddings.create(model="v", input=["ab", "cd"]))
        thread.start()
        within("it is at the worker", lambda: len(lengths.seen) == 1)
        refused = site.post(URL, ONES)
        assert (refused.status_code, error(refused)["code"]) == (503, "busy")
        site.call(lengths.hold.set)
        thread.join(20)
    assert site.post(URL, ONES).status_code == 200


@pytest.mark.parametrize("form", ["float", "base64"])
def test_a_large_answer_leaves_in_pieces(site: Any, form: str) -> None:
    """Whole and right, without a length said first: it is made as the client takes it."""
    wide = packed([index / 7 for index in range(3000)])

    def answers(incoming: Incoming) -> None:
        for index in range(len(incoming.payload["token_ids"])):
            incoming.send([index, wide])
        incoming.finish()

    site.worker(answers, "v", model_types=["embedding"])
    answer = site.post(URL, {"model": "v", "input": ["x"] * 100, "encoding_format": form})
    assert "content-length" not in answer.headers
    data = answer.json()["data"]
    assert len(data) == 100
    found = data[99]["embedding"]
    assert (base64.b64decode(found) if form == "base64" else packed(found)) == wide


def test_a_client_that_does_not_read_is_cut_off(make_site: Any, within: Any) -> None:
    """After the time that clients have; the rest of its answer is not made."""
    site = make_site(write_timeout_secs=0.3)
    wide = packed([0.123456789] * 16000)

    def answers(incoming: Incoming) -> None:
        for index in range(len(incoming.payload["token_ids"])):
            incoming.send([index, wide])
        incoming.finish()

    site.worker(answers, "v", model_types=["embedding"])
    body = json.dumps({"model": "v", "input": ["x"] * 200}).encode()
    head = f"POST {URL} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with site.socket() as sock:
        sock.sendall(head.encode() + body)
        within("the limit is hit", lambda: site.metric("timeouts_total", type="client_stall") == 1)
        within("it is over", lambda: site.metric("inflight_requests", model="v") == 0)


def test_the_openapi_page_has_the_route(served: Any) -> None:
    """Body and answers; no stream."""
    page = httpx.get(f"{served.url}/openapi.json").json()
    operation = page["paths"][URL]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/EmbeddingsRequest")
    assert set(operation["responses"]["200"]["content"]) == {"application/json"}
    assert page["components"]["schemas"]["EmbeddingsRequest"]["required"] == ["model", "input"]
    assert httpx.get(f"{served.url}{URL}").status_code == 405


def test_a_frontend_that_leaves_tells_who_waits(make_site: Any, lengths: Lengths, within: Any) -> None:
    """503 once its grace has passed."""
    site = make_site(graceful_shutdown_timeout_secs=0.2)
    site.worker(lengths, "v", model_types=["embedding"])
    lengths.hold = asyncio.Event()
    found: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: found.append(site.post(URL, ONES)))
    thread.start()
    within("it is at the worker", lambda: len(lengths.seen) == 1)
    site.call(site.leaving.signal)
    thread.join(20)
    assert (found[0].status_code, error(found[0])["code"]) == (503, "shutdown")
