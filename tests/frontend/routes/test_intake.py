"""How large requests come in, over HTTP: the budget, the threads, and what they leave to others."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest

from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.protocols import delta

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
SMALL: Final[dict[str, Any]] = {"model": "m", "prompt": "hello", "max_tokens": 3}


def asked(path: str) -> dict[str, Any]:
    """A good large request for a route."""
    filler = {"first": "x" * 60_000, "second": "y" * 60_000}
    bodies: dict[str, dict[str, Any]] = {
        TEXT: {"model": "m", "prompt": "hello", "max_tokens": 5, **filler},
        CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, **filler},
        "/v1/embeddings": {"model": "e", "input": ["hello", "you"], **filler},
        "/tokenize": {"model": "m", "prompt": "hello", **filler},
        "/detokenize": {"model": "m", "tokens": [104, 105], **filler},
    }
    return bodies[path]


def answered(path: str, body: dict[str, Any]) -> Any:
    """The part of an answer that doesn't differ between two of them."""
    return (body["choices"], body["usage"]) if path in (TEXT, CHAT) else body


@pytest.fixture
def vectors(engines: Any) -> Any:
    """An engine of vectors."""

    class Vectors(engines):  # type: ignore[misc] # a class of the conftest's choice
        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            for index, _ in enumerate(payload["token_ids"]):
                incoming.send([index, b"\0\0\x80?"])
            incoming.finish()

    return Vectors()


@pytest.mark.parametrize("path", [TEXT, CHAT, "/v1/embeddings", "/tokenize", "/detokenize"])
def test_large_requests_are_answered_as_small_ones(served: Any, vectors: Any, path: str) -> None:
    """The same answer, though the request is read in a thread."""
    served.worker(vectors, "e", path="test.vectors.generate", model_types=["embedding"])
    large = asked(path)
    small = {name: value for name, value in large.items() if name not in ("first", "second")}
    given, expected = served.post(path, large), served.post(path, small)
    assert (given.status_code, expected.status_code) == (200, 200)
    assert answered(path, given.json()) == answered(path, expected.json())


async def event() -> asyncio.Event:
    """What an engine waits for."""
    return asyncio.Event()


def send(site: Any, body: Any, **headers: str) -> Future[httpx.Response]:
    """Ask in a thread of its own."""
    pool = ThreadPoolExecutor(1)
    sent = pool.submit(site.post, TEXT, body, headers=headers)
    pool.shutdown(wait=False)
    return sent


def test_work_on_a_large_request_stops_nobody(served: Any, monkeypatch: pytest.MonkeyPatch, within: Any) -> None:
    """While all threads are busy, small requests are answered; large ones wait, and go when their time is over."""
    gate, entered, own = threading.Event(), list[str](), Preprocessor.completion

    async def completion(self: Preprocessor, body: Any, *, blocking: bool = False) -> Any:
        if blocking:
            entered.append("large")
            gate.wait(20)
        return await own(self, body, blocking=blocking)

    monkeypatch.setattr(Preprocessor, "completion", completion)
    try:
        running = [send(served, asked(TEXT)) for _ in range(8)]
        within("the threads are busy", lambda: len(entered) >= 2)
        assert served.post(TEXT, SMALL).status_code == 200
        late = served.post(TEXT, asked(TEXT), headers={"x-request-timeout-ms": "50"})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline")
        assert "0.05 s, by x-request-timeout-ms" in late.json()["error"]["message"]
    finally:
        gate.set()
    assert [answer.result(20).status_code for answer in running] == [200] * 8
    assert len(entered) == 8  # the late one was never read


def test_bodies_beyond_the_budget_get_503(
    make_site: Any, echo: Any, monkeypatch: pytest.MonkeyPatch, within: Any
) -> None:
    """What doesn't fit is refused before it is read, with Retry-After, and counted; afterwards there is room again."""
    monkeypatch.setattr("dynamo.frontend.http.body_budget.BodyBudget.take.__defaults__", (0.1,))
    site = make_site(body_limit_mb=0.25, body_budget_mb=0.25)
    site.worker(echo)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    with site.socket() as slow:
        slow.sendall(head % 200_000 + b"{")
        answer = site.post(TEXT, asked(TEXT))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies")
        assert answer.headers["retry-after"]
        assert site.post(TEXT, SMALL).status_code == 200
    within("there is room", lambda: site.post(TEXT, asked(TEXT)).status_code == 200)
    assert site.metric("rejected_requests_total", model="", reason="bodies") == 1


def test_bodies_of_unknown_length_take_room_too(make_site: Any, echo: Any, within: Any) -> None:
    """A body in chunks is read as others are, and gives back what it took."""
    site = make_site(body_limit_mb=0.5, body_budget_mb=0.5)
    site.worker(echo)
    raw = json.dumps(asked(TEXT)).encode()
    for _ in range(5):
        pieces = (raw[at : at + 10_000] for at in range(0, len(raw), 10_000))
        assert httpx.post(site.url + TEXT, content=pieces, timeout=20).status_code == 200
    refused = httpx.post(site.url + TEXT, content=iter([b" " * 100_000] * 6), timeout=20)
    assert refused.status_code == 413
    assert httpx.post(site.url + TEXT, content=raw, timeout=20).status_code == 200


def test_tokens_are_asked_for_through_the_door(make_site: Any, engines: Any, within: Any) -> None:
    """/tokenize and /detokenize count among the requests that a process answers at once, and of a model."""
    site = make_site(max_requests_per_model=1)
    engine = engines()
    engine.hold = site.run(event())
    site.worker(engine)
    running = send(site, SMALL)
    within("it runs", lambda: len(engine.seen) == 1)
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        refused = site.post(path, {"model": "m", **body})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_full")
    site.call(engine.hold.set)
    assert running.result(20).status_code == 200
    within("the place is free", lambda: site.post("/tokenize", {"model": "m", "prompt": "a"}).status_code == 200)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {"prompt": "x" * 5000}, "4096"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 5000}]}, "4096"),
        ("/tokenize", {"prompt": "x" * 3_000_000}, "3000000"),
        ("/detokenize", {"tokens": [65] * 1025}, "1025"),
        ("/detokenize", {"tokens": [65] * 500_000}, "500000"),
    ],
)
def test_tokens_are_bounded_by_the_context(served: Any, path: str, body: dict[str, Any], words: str) -> None:
    """A text is shown up to four contexts, ids up to one: more is a 400 that says how many there are."""
    answer = served.post(path, {"model": "m", **body})
    assert answer.status_code == 400
    assert words.replace("4096", "1024") in answer.json()["error"]["message"]


def test_a_text_somewhat_over_the_context_is_still_counted(served: Any) -> None:
    """Who asks for tokens wants to know by how much a text is too long."""
    assert served.post("/tokenize", {"model": "m", "prompt": "x" * 3000}).json()["count"] == 3000


@pytest.mark.parametrize(
    "given", [b"000000000001" + b"9" * 400, b"1" + b"0" * 20, b"0", b"-1", b"1.5", b"+5", b"86400001", b"\xb2"]
)
def test_a_time_limit_is_a_short_number(served: Any, given: bytes) -> None:
    """Whatever else the header holds is a 400 that names it."""
    answer = served.post(TEXT, SMALL, headers={b"x-request-timeout-ms": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-request-timeout-ms")


@pytest.mark.parametrize("value", [[1], {}, -5, "5", 1e308, 0, 2**40])
@pytest.mark.parametrize("field", ["max_completion_tokens", "prompt_logprobs", "best_of", "min_tokens"])
def test_fields_that_are_read_are_checked(served: Any, field: str, value: Any) -> None:
    """On both routes, at the top level and in `nvext`, what has an effect has a type: never a 500."""
    for path in (TEXT, CHAT):
        body = {key: entry for key, entry in asked(path).items() if key not in ("first", "second")}
        answer = served.post(path, {**body, field: value})
        if not (field in ("min_tokens", "prompt_logprobs") and value == 0):
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    "field", ["logit_bias", "stop_token_ids", "top_p", "presence_penalty", "guided_structural_tag", "guided_backend",
              "include_stop_str_in_output"],
)  # fmt: skip
def test_fields_in_nvext_are_checked_as_those_outside(served: Any, field: str) -> None:
    """What older clients put there is used, so it has the same bounds."""
    wrong: list[Any] = [[[]], 10**30, {"x": 10**400}]
    for value in wrong:
        answer = served.post(TEXT, {**SMALL, "nvext": {field: value}})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith(field)


def test_completions_take_max_completion_tokens(served: Any) -> None:
    """It was used there all the time, and is a field now."""
    answer = served.post(TEXT, {"model": "m", "prompt": "hello", "max_completion_tokens": 2})
    assert answer.json()["choices"][0]["text"] == "he"


@pytest.mark.parametrize("number", [2**64, 10**30, -(2**63) - 1])
def test_numbers_of_more_than_64_bits_travel_as_floats(served: Any, number: int) -> None:
    """In a schema, a tool's parameters, or a body for an engine that takes text; 400 where a float can't hold them."""
    bodies: list[dict[str, Any]] = []

    def answers(incoming: Any) -> None:
        bodies.append(incoming.payload["body"])
        incoming.finish(delta("hi", "stop"))

    served.worker(answers, "text", path="test.text.generate", model_input="text", tokenizer="none")
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": number}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    shape = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for extra in (
        {"guided_json": schema},
        {"response_format": shape},
        {"tools": [tool], "tool_choice": "required"},
        {"model": "text", "chat_template_kwargs": {"a": number}},
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **extra}
        answer = served.post(CHAT, body)
        assert answer.status_code == 200, answer.text
        longer = json.loads(json.dumps(body).replace(str(number), "9" * 400))
        assert served.post(CHAT, longer).status_code == 400, extra
    assert [body["chat_template_kwargs"] for body in bodies] == [{"a": float(number)}]


@pytest.mark.parametrize("digits", [5_000, 100_000])
def test_numbers_of_too_many_digits_are_named(served: Any, digits: int) -> None:
    """In a short body and in a long one: the sentence speaks of digits."""
    body = b'{"model": "m", "prompt": "hi", "metadata": {"a": %s}}' % (b"9" * digits)
    answer = httpx.post(f"{served.url}{TEXT}", content=body, headers={"content-type": "application/json"}, timeout=20)
    assert answer.status_code == 400
    assert "a number with more than 400 digits" in answer.json()["error"]["message"]


def test_answers_to_long_prompts_are_bounded(make_site: Any, echo: Any, engines: Any) -> None:
    """Prompt tokens times answers, and what a text engine is sent as often, have a bound: 400 that names the field."""
    site = make_site(body_limit_mb=4)
    site.worker(echo, context_length=100_000)
    site.worker(engines(), "text", path="test.text.generate", model_input="text")
    many = site.post(TEXT, {"model": "m", "prompt": "x" * 50_000, "n": 128, "max_tokens": 1})
    assert (many.status_code, many.json()["error"]["param"]) == (400, "n")
    assert "6400000 tokens" in many.json()["error"]["message"]
    batch = site.post(TEXT, {"model": "m", "prompt": ["x" * 90_000] * 16, "max_tokens": 1})
    assert (batch.status_code, batch.json()["error"]["param"]) == (400, "prompt")
    assert echo.seen == []
    fine = site.post(TEXT, {"model": "m", "prompt": "x" * 8000, "n": 128, "max_tokens": 1})
    assert fine.status_code == 200
    assert len(fine.json()["choices"]) == 128
    text = site.post(TEXT, {"model": "text", "prompt": "x" * 1_000_000, "n": 64})
    assert (text.status_code, text.json()["error"]["param"]) == (400, "n")
    constrained = {"model": "m", "prompt": ["x"] * 16, "n": 128, "guided_choice": ["y" * 200_000], "max_tokens": 1}
    assert site.post(TEXT, constrained).json()["error"]["param"] == "n"


def test_answers_at_once_are_bounded_by_default(site: Any, engines: Any, within: Any) -> None:
    """Without any flag a process answers 8192 at once, however few requests ask for them."""
    engine = engines()
    engine.hold = site.run(event())
    site.worker(engine)
    many = {**SMALL, "prompt": ["a"] * 16, "n": 128}
    running = [send(site, many) for _ in range(4)]
    within("they run", lambda: site.metric("inflight_requests", model="m") == 4)
    refused = site.post(TEXT, SMALL)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "frontend_full")
    site.call(engine.hold.set)
    assert [answer.result(60).status_code for answer in running] == [200] * 4


def test_what_is_logged_and_answered_is_short(served: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A name, a path or a field of a client is never repeated at length."""
    long = "x" * 60_000
    with caplog.at_level("DEBUG"):
        answers = [
            served.post(TEXT, {**SMALL, "model": long}),
            served.post(TEXT, {**SMALL, "model": "y" * 500}),
            served.post(TEXT, {**SMALL, long: 1}),
            served.post("/v1/embeddings", {"model": "m", "input": "a", "encoding_format": long}),
            served.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": [{"type": long}]}]}),
            served.post(CHAT, {**asked(CHAT), "response_format": {"type": long}}),
            httpx.get(f"{served.url}/v1/models/{'z' * 20_000}"),
            httpx.get(f"{served.url}/{'z' * 20_000}"),
            httpx.put(f"{served.url}/live{'z' * 20_000}"),
        ]
    assert max(len(answer.content) for answer in answers) < 2000
    own = [record.getMessage() for record in caplog.records if record.name.startswith("dynamo.")]
    assert max(map(len, own)) < 3000
