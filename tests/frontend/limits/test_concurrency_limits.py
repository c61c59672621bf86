"""Bounds on requests side by side: who is refused, by what, before any work, and that every place is given back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.limits.concurrency_limits import ConcurrencyLimiter, Slot, caller_of
from dynamo.frontend.limits.settings import ConcurrencyLimits
from dynamo.llm.processing.preprocess import Preprocessor

TEXT = "/v1/completions"
ASKED = {"model": "m", "prompt": "hello", "max_tokens": 2}


def scope(address: str = "10.0.0.1", **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"headers": pairs, "client": (address, 1)}


def test_who_asks() -> None:
    """A tenant before a key before an address; without any of them all are one."""
    assert caller_of(scope(authorization="Bearer a", x_api_key="b", x_tenant_id="t")) == b"t"
    assert caller_of(scope(authorization="Bearer a", x_api_key="b")) == b"Bearer a"
    assert caller_of(scope(x_api_key="b", authorization="")) == b"b"
    assert caller_of(scope()) == b"10.0.0.1"
    assert caller_of({"headers": [], "client": None}) == b""


def test_counts_come_back_to_nothing() -> None:
    """Whoever comes, is refused and leaves, in any order: bounds hold, and nothing is kept of who left."""
    random = Random(3)
    reasons: set[str] = set()
    limiter = ConcurrencyLimiter(ConcurrencyLimits(8, 4, 3), lambda reason, model, endpoint: reasons.add(reason))
    inside: list[Slot] = []
    for _ in range(3000):
        if inside and random.random() < 0.45:
            limiter.leave(inside.pop(random.randrange(len(inside))))
            continue
        with contextlib.suppress(ApiError):
            slot = limiter.enter(scope(authorization=random.choice("abcdef")))
            try:
                limiter.to_model(slot, random.choice("mno"), "completions", random.choice([1, 1, 2]))
                inside.append(slot)
            except ApiError:
                limiter.leave(slot)
        assert limiter.inside == sum(one.answers for one in inside) <= 8 + 1
        assert max(limiter._of_caller.values()) <= 3 + 1
        assert max(limiter._of_model.values(), default=0) <= 4 + 1
    for slot in inside:
        limiter.leave(slot)
    assert (limiter.inside, limiter._of_caller, limiter._of_model) == (0, {}, {})
    assert reasons == {"frontend_full", "model_full", "rate_limit_exceeded"}


def holding(site: Any, engines: Any, **options: Any) -> Any:
    """A worker whose requests give no token until `let_go`."""
    engine = engines()

    async def hold() -> None:
        engine.hold = asyncio.Event()

    site.run(hold())
    site.worker(engine, **options)
    return engine


def sent(site: Any, body: dict[str, Any], **headers: str) -> Future[httpx.Response]:
    pool = ThreadPoolExecutor(1)
    found = pool.submit(
        site.post, TEXT, body, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    pool.shutdown(wait=False)
    return found


def test_a_full_frontend_refuses_before_the_body(make_site: Any, engines: Any, within: Any) -> None:
    """503 with Retry-After for a request whose body never comes; probes and metrics go on; then there is room again."""
    site = make_site(max_concurrent_requests=2)
    engine = holding(site, engines)
    running = [sent(site, ASKED) for _ in range(2)]
    within("both run", lambda: len(engine.seen) == 2)
    with site.socket() as one:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5000000\r\n\r\n")
        answer = one.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 503 ")
    assert "\r\nretry-after: " in answer.lower()
    assert '"code":"frontend_full"' in answer
    assert httpx.get(f"{site.url}/live").status_code == 200
    assert site.metric("rejected_requests_total", model="", reason="frontend_full") == 1
    assert site.metric("requests_total", error_type="overload") == 1
    site.call(engine.hold.set)
    assert [one.result(20).status_code for one in running] == [200, 200]
    assert site.post(TEXT, ASKED).status_code == 200


def test_one_model_s_share_leaves_the_others_theirs(make_site: Any, engines: Any, within: Any) -> None:
    """A model with all that it may have is refused, another one is not; an unknown one is 404 as ever."""
    site = make_site(max_requests_per_model=1)
    engine = holding(site, engines)
    site.worker(engines(), "n", path="test.other.generate")
    running = sent(site, ASKED)
    within("it runs", lambda: len(engine.seen) == 1)
    refused = site.post(TEXT, ASKED)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_full")
    assert refused.headers["retry-after"]
    assert site.metric("model_rejection_total", model="m", endpoint="completions") == 1
    assert site.metric("rejected_requests_total", model="m", reason="model_full") == 1
    assert len(engine.seen) == 1
    assert site.post(TEXT, {**ASKED, "model": "n"}).status_code == 200
    assert site.post(TEXT, {**ASKED, "model": "o"}).status_code == 404
    assert site.metric("requests_total", model="m", error_type="overload") == 1
    site.call(engine.hold.set)
    assert running.result(20).status_code == 200
    assert site.post(TEXT, ASKED).status_code == 200


def test_several_answers_count_as_many(make_site: Any, engines: Any, within: Any) -> None:
    """A request for more than there is room for comes in as the last one; nobody else does while it runs."""
    site = make_site(max_requests_per_client=4, max_requests_per_model=5)
    engine = holding(site, engines)
    running = sent(site, {**ASKED, "prompt": ["a", "b", "c"], "n": 2}, authorization="a")
    within("all six run", lambda: len(engine.seen) == 6)
    assert site.post(TEXT, ASKED, headers={"authorization": "a"}).status_code == 429
    assert site.post(TEXT, {**ASKED, "prompt": [1, 2, 3]}, headers={"authorization": "b"}).status_code == 503
    site.call(engine.hold.set)
    assert running.result(20).status_code == 200
    assert site.post(TEXT, ASKED, headers={"authorization": "a"}).status_code == 200


def test_a_caller_s_quota_is_429(make_site: Any, engines: Any, within: Any) -> None:
    """In the words of OpenAI's API; other callers are served meanwhile."""
    site = make_site(max_requests_per_client=1)
    engine = holding(site, engines)
    running = sent(site, ASKED, authorization="Bearer a")
    within("it runs", lambda: len(engine.seen) == 1)
    refused = site.post(TEXT, ASKED, headers={"authorization": "Bearer a"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "requests")
    assert refused.headers["retry-after"]
    other = sent(site, ASKED, authorization="Bearer b")
    tenant = sent(site, ASKED, authorization="Bearer a", x_tenant_id="t")
    within("the others run", lambda: len(engine.seen) == 3)
    site.call(engine.hold.set)
    assert [one.result(20).status_code for one in (running, other, tenant)] == [200] * 3


def test_every_end_gives_the_place_back(make_site: Any, engines: Any, within: Any) -> None:
    """Bad requests, clients that leave in their body or in mid-stream: the one place is free again after each."""
    site = make_site(
        max_concurrent_requests=1, max_requests_per_model=1, max_requests_per_client=1, body_timeout_secs=0.2
    )
    engine = engines(delay=0.01)
    site.worker(engine)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

    def free() -> bool:
        return bool(site.post(TEXT, ASKED).status_code == 200)

    for body in ({}, {**ASKED, "model": "nope"}, {**ASKED, "max_tokens": "x"}, {**ASKED, "prompt": "x" * 5000}):
        assert site.post(TEXT, body).status_code in (400, 404)
        within("free after a bad request", free)
    with site.socket() as one:
        one.sendall(head % 100 + b"{")
    within("free after half a body", free)
    with site.socket() as one:
        one.sendall(head % 100 + b"{")
        assert one.recv(100).startswith(b"HTTP/1.1 408 ")
        within("free after a late body", free)
    raw = json.dumps({**ASKED, "prompt": "x" * 900, "max_tokens": 100, "stream": True}).encode()
    with site.socket() as one:
        one.sendall(head % len(raw) + raw)
        assert one.recv(100)
        assert site.post(TEXT, ASKED).status_code == 503
    within("free after a client that left", free)


def test_connections_are_bounded(make_site: Any, engines: Any, within: Any) -> None:
    """Where all others are at work, one too many is told so, whatever it would ask; when one ends there is room."""
    site = make_site(max_connections=3)
    site.worker(engines(delay=0.01))
    raw = json.dumps({**ASKED, "prompt": "x" * 900, "max_tokens": 100, "stream": True}).encode()
    busy = [site.socket() for _ in range(3)]
    for one in busy:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw)
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")
    with site.socket() as one:
        answer = one.recv(65536).decode()
        assert answer.startswith("HTTP/1.1 503 ")
        assert "\r\nretry-after: " in answer
        assert '"code":"connections"' in answer
        one.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert one.recv(100) == b""
    for one in busy:
        one.close()
    within("there is room", lambda: httpx.get(f"{site.url}/live").status_code == 200)
    assert site.metric("rejected_requests_total", model="", reason="connections") >= 1


@pytest.mark.parametrize("options", [{"active_prefill_tokens_threshold": 0}, {"router_queue_threshold": 0.0}])
def test_who_is_refused_is_not_tokenised(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A busy model and a full queue refuse before the prompt is looked at."""
    site = make_site(**options, router_queue_limit=1)
    engine = holding(site, engines, figures={"max_num_batched_tokens": 64})
    running = [sent(site, ASKED)]
    within("it runs", lambda: len(engine.seen) == 1)
    if "router_queue_threshold" in options:
        running.append(sent(site, ASKED))
        within("one waits", lambda: site.metric("router_queue_pending_requests", model="m") == 1)
    looked: list[Any] = []
    own = Preprocessor.completion

    def completion(self: Preprocessor, body: Any) -> Any:
        looked.append(body)
        return own(self, body)

    monkeypatch.setattr(Preprocessor, "completion", completion)
    assert site.post(TEXT, ASKED).status_code == 503
    assert looked == []
    assert site.metric("rejected_requests_total", model="m") == 1
    site.call(engine.hold.set)
    assert {one.result(20).status_code for one in running} == {200}


def test_one_model_s_long_prompts_leave_threads_to_others(
    make_site: Any, engines: Any, within: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many long prompts of one model wait for a thread, another model's gets one; who left is not tokenised."""
    site = make_site()
    site.worker(engines(), "m")
    site.worker(engines(), "n", path="test.other.generate")
    entered: list[str] = []

    async def hold() -> asyncio.Event:
        return asyncio.Event()

    gate, own = site.run(hold()), Preprocessor.completion

    async def completion(self: Preprocessor, body: Any, **options: Any) -> Any:
        entered.append(self.card.name)
        if self.card.name == "m":
            await gate.wait()
        return await own(self, body, **options)

    monkeypatch.setattr(Preprocessor, "completion", completion)
    long = {**ASKED, "prompt": "x" * 900, "metadata": {str(n): "y" * 500 for n in range(10)}}
    flood = [sent(site, long) for _ in range(12)]
    left = [site.socket() for _ in range(3)]
    raw = json.dumps(long).encode()
    within("the flood is here", lambda: site.metric("inflight_requests", model="m") == 12)
    for one in left:
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(raw) + raw)
    within("these wait, too", lambda: site.metric("inflight_requests", model="m") == 15)
    for one in left:
        one.close()
    time.sleep(0.6)  # a client that closed may have closed one half: it is asked for some tenths of a second
    assert site.post(TEXT, {**long, "model": "n"}).status_code == 200
    assert 0 < entered.count("m") < 12
    site.call(gate.set)
    assert [one.result(20).status_code for one in flood] == [200] * 12
    within("all are over", lambda: site.metric("inflight_requests", model="m") == 0)
    assert entered.count("m") == 12
