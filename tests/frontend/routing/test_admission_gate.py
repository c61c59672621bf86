"""Busy thresholds and the queue in a whole frontend, in the modes with and without KV caches."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from dynamo.frontend.app import Application
from dynamo.frontend.assembly import frontend
from dynamo.frontend.settings import FrontendSettings
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.process.settings import build

TEXT = "/v1/completions"
FIGURES = {"total_kv_blocks": 100, "max_num_batched_tokens": 64, "max_num_seqs": 8}
MODES: list[dict[str, Any]] = [{}, {"router_mode": "kv", "use_kv_events": False}]
LONG = {"model": "m", "prompt": "x" * 100, "max_tokens": 2}
SHORT = {"model": "m", "prompt": "hello", "max_tokens": 2}
modes = pytest.mark.parametrize("mode", MODES, ids=["round-robin", "kv"])


def holding(site: Any, engines: Any, **options: Any) -> Any:
    """A worker whose requests give no token until `let_go`."""
    engine = engines()

    async def hold() -> None:
        engine.hold = asyncio.Event()

    site.run(hold())
    site.worker(engine, **{"figures": FIGURES, "kv_cache_block_size": 8, **options})
    return engine


def let_go(site: Any, engine: Any) -> None:
    site.call(engine.hold.set)


def sent(site: Any, body: dict[str, Any], **options: Any) -> Future[httpx.Response]:
    pool = ThreadPoolExecutor(1)
    running = pool.submit(site.post, TEXT, body, **options)
    pool.shutdown(wait=False)
    return running


def waiting(site: Any) -> float:
    value: float = site.metric("router_queue_pending_requests", model="m")
    return value


@modes
@pytest.mark.parametrize(
    "thresholds",
    [
        {"active_decode_blocks_threshold": 0.1},
        {"active_prefill_tokens_threshold": 90},
        {"active_prefill_tokens_threshold_frac": 1.5},
    ],
    ids=["blocks", "tokens", "frac"],
)
def test_all_busy_is_503(
    make_site: Any, engines: Any, within: Any, mode: dict[str, Any], thresholds: dict[str, Any]
) -> None:
    """The second worker takes the second request; the third is refused until one of them has ended."""
    site = make_site(**mode, **thresholds)
    first, second = holding(site, engines), holding(site, engines)
    running = [sent(site, LONG)]
    within("one works", lambda: len(first.seen) + len(second.seen) == 1)
    running.append(sent(site, LONG))
    within("both work", lambda: (len(first.seen), len(second.seen)) == (1, 1))
    answer = site.post(TEXT, SHORT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) > 0
    assert site.metric("rejected_requests_total", model="m", reason="busy") == 1
    assert site.metric("requests_total", model="m", error_type="overload") == 1
    let_go(site, first)
    let_go(site, second)
    assert [answer.result(20).status_code for answer in running] == [200, 200]
    assert site.post(TEXT, SHORT).status_code == 200


@modes
def test_a_request_waits_for_room_and_its_place_is_bounded(
    make_site: Any, engines: Any, within: Any, mode: dict[str, Any]
) -> None:
    """One runs, one waits, one is too many; what waits goes on as soon as the prefill is over."""
    site = make_site(**mode, router_queue_threshold=1.0, router_queue_limit=1)
    engine = holding(site, engines)
    running = sent(site, LONG)
    within("it works", lambda: len(engine.seen) == 1)
    queued = sent(site, {**SHORT, "stream": True})
    within("one waits", lambda: waiting(site) == 1)
    assert site.metric("router_queue_pending_isl_tokens", model="m") == 5
    answer = site.post(TEXT, SHORT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert answer.headers["retry-after"]
    assert len(engine.seen) == 1
    let_go(site, engine)
    assert (running.result(20).status_code, queued.result(20).status_code) == (200, 200)
    assert queued.result().text.endswith("[DONE]\n\n")
    assert (waiting(site), site.metric("router_queue_wait_seconds_count", model="m")) == (0, 1)


def test_no_one_waits_for_ever(make_site: Any, engines: Any, within: Any) -> None:
    """After the queue's time 503, after the request's own time 504; the engine hears of neither."""
    site = make_site(router_queue_threshold=1.0, router_queue_timeout_secs=0.5)
    engine = holding(site, engines)
    running = sent(site, LONG)
    within("it works", lambda: len(engine.seen) == 1)
    late, own = sent(site, SHORT), sent(site, SHORT, headers={"x-request-timeout-ms": "100"})
    assert (late.result(20).status_code, late.result().json()["error"]["code"]) == (503, "queue_timeout")
    assert late.result().headers["retry-after"]
    assert (own.result(20).status_code, own.result().json()["error"]["code"]) == (504, "deadline")
    assert (len(engine.seen), waiting(site)) == (1, 0)
    let_go(site, engine)
    assert running.result(20).status_code == 200


def test_a_client_that_goes_away_frees_its_place(make_site: Any, engines: Any, within: Any) -> None:
    """At once: the place can be taken by another."""
    site = make_site(router_queue_threshold=1.0, router_queue_limit=1)
    engine = holding(site, engines)
    running = sent(site, LONG)
    within("it works", lambda: len(engine.seen) == 1)
    gone = site.socket()
    body = b'{"model":"m","prompt":"abc","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    gone.sendall(head % len(body) + body)
    within("it waits", lambda: waiting(site) == 1)
    gone.close()
    within("its place is free", lambda: waiting(site) == 0)
    queued = sent(site, SHORT)
    within("another has it", lambda: waiting(site) == 1)
    let_go(site, engine)
    assert (running.result(20).status_code, queued.result(20).status_code) == (200, 200)
    assert len(engine.seen) == 2


def test_who_waits_goes_to_a_worker_that_comes(make_site: Any, engines: Any, within: Any) -> None:
    """And where the only worker leaves, it is told as everybody else is."""
    site = make_site(router_queue_threshold=1.0)
    first = holding(site, engines)
    running = sent(site, LONG)
    within("it works", lambda: len(first.seen) == 1)
    queued = sent(site, SHORT)
    within("one waits", lambda: waiting(site) == 1)
    second = engines()
    site.worker(second, figures=FIGURES, kv_cache_block_size=8)
    assert queued.result(20).status_code == 200
    assert len(second.seen) == 1
    let_go(site, first)
    assert running.result(20).status_code == 200


def test_text_engines_are_busy_by_their_sequences(make_site: Any, within: Any) -> None:
    """An engine that takes text has neither blocks nor prompt tokens here: streams of its slots count."""
    site = make_site(active_decode_blocks_threshold=0.5)
    held: list[Any] = []
    site.worker(held.append, model_input="text", tokenizer="none", figures={"max_num_seqs": 2})
    running = [sent(site, SHORT)]
    within("it works", lambda: len(held) == 1)
    running.append(sent(site, SHORT))
    within("both work", lambda: len(held) == 2)
    assert site.post(TEXT, SHORT).json()["error"]["code"] == "busy"
    for incoming in held:
        site.call(lambda stream=incoming: (stream.send(["hi", "stop", None]), stream.finish()))
    assert [answer.result(20).status_code for answer in running] == [200, 200]


def test_thresholds_while_it_runs(make_site: Any, engines: Any, within: Any) -> None:
    """NVIDIA Dynamo's bodies: asking, setting one, listing; then back to the flags."""
    site = make_site()
    engine = holding(site, engines)
    none = {
        "model": "m",
        "active_decode_blocks_threshold": None,
        "active_prefill_tokens_threshold": None,
        "active_prefill_tokens_threshold_frac": None,
    }
    path = "/busy_threshold"
    assert httpx.get(site.url + path).json() == {"thresholds": []}
    assert site.post(path, {"model": "m"}).json() == none
    assert site.post(path, {"model": "m", "active_prefill_tokens_threshold": 50}).json() == {
        **none,
        "active_prefill_tokens_threshold": 50,
    }
    both = {**none, "active_decode_blocks_threshold": 0.9, "active_prefill_tokens_threshold": 50}
    assert site.post(path, {"model": "m", "active_decode_blocks_threshold": 0.9}).json() == both
    assert httpx.get(site.url + path).json() == {"thresholds": [both]}
    running = sent(site, LONG)
    within("it works", lambda: len(engine.seen) == 1)
    assert site.post(TEXT, SHORT).status_code == 503
    assert httpx.delete(f"{site.url}{path}/m").json() == none
    let_go(site, engine)
    assert site.post(TEXT, SHORT).status_code == 200
    assert running.result(20).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "model"),
        ({"model": "m", "active_decode_blocks_threshold": 1.5}, 400, "active_decode_blocks_threshold"),
        ({"model": "m", "active_prefill_tokens_threshold": -1}, 400, "active_prefill_tokens_threshold"),
        ({"model": "m", "active_prefill_tokens_threshold": "x"}, 400, "active_prefill_tokens_threshold"),
        ({"model": "m", "active_prefill_tokens_threshold_frac": -0.1}, 400, "active_prefill_tokens_threshold_frac"),
        ({"model": "m", "busy": 1}, 400, None),
        ({"model": "other", "active_decode_blocks_threshold": 0.5}, 404, "model"),
    ],
)
def test_bad_thresholds_name_the_field(served: Any, body: dict[str, Any], status: int, param: str | None) -> None:
    """And change nothing."""
    answer = served.post("/busy_threshold", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
    assert httpx.get(served.url + "/busy_threshold").json() == {"thresholds": []}


def test_one_of_several_processes_does_not_pretend_to_speak_for_all(make_site: Any, engines: Any) -> None:
    """With `--workers` a POST would change the thresholds of whichever process answers: refused, asking is not."""
    site = make_site(has_siblings=True, active_decode_blocks_threshold=0.9)
    site.worker(engines())
    assert site.post("/busy_threshold", {"model": "m"}).json()["active_decode_blocks_threshold"] == 0.9
    answer = site.post("/busy_threshold", {"model": "m", "active_decode_blocks_threshold": 0.5})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_alone")
    assert httpx.delete(f"{site.url}/busy_threshold/m").status_code == 409


def test_the_admin_api_can_be_left_out(make_site: Any) -> None:
    """Then it is an unknown route."""
    site = make_site(disable_admin_api=True)
    assert httpx.get(site.url + "/busy_threshold").status_code == 404


@pytest.mark.parametrize(
    ("client", "headers", "open_admin_api", "status"),
    [
        ("127.0.0.1", {}, False, 404), ("::1", {}, False, 404), ("::ffff:127.0.0.1", {}, False, 404),
        ("", {}, False, 403), ("203.0.113.5", {}, False, 403), ("::ffff:203.0.113.5", {}, False, 403),
        ("127.0.0.6", {}, False, 403), ("::ffff:127.0.0.6", {}, False, 403), ("127.1", {}, False, 403),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.5"}, False, 403),
        ("127.0.0.1", {"X-Forwarded-Proto": "http"}, False, 403), ("::1", {"x-forwarded-host": "a"}, False, 403),
        ("127.0.0.1", {"x-envoy-attempt-count": "1"}, False, 403), ("127.0.0.1", {"via": "1.1 p"}, False, 403),
        ("127.0.0.1", {"x-real-ip": ""}, False, 403), ("127.0.0.1", {"forwarded": "for=a"}, False, 403),
        ("127.0.0.1", {"sec-fetch-site": "none"}, False, 403),
        ("127.0.0.1", {"origin": "http://evil.example"}, False, 403), ("203.0.113.5", {}, True, 404),
    ],
)  # fmt: skip
async def test_only_this_machine_changes_thresholds(
    client: str, headers: dict[str, str], open_admin_api: bool, status: int
) -> None:
    """Who may ask for tokens must not refuse them to all others, and no web page may that somebody looks at on this
    machine; asking is for everybody. (404: no such model.)"""
    settings = build(FrontendSettings, open_admin_api=open_admin_api)
    async with await DistributedRuntime.in_memory() as runtime, frontend(runtime, settings) as services:
        app: Any = Application(services)
        through = httpx.ASGITransport(app, client=(client, 5))
        async with httpx.AsyncClient(transport=through, base_url="http://x", headers=headers) as asking:
            change = {"model": "m", "active_prefill_tokens_threshold": 0}
            assert (await asking.post("/busy_threshold", json=change)).status_code == status
            assert (await asking.delete("/busy_threshold/m")).status_code == status
            assert (await asking.post("/busy_threshold", json={"model": "m"})).status_code == 200


def test_thresholds_say_what_they_cannot_do(make_site: Any, engines: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At the start for the mode, and once per model for a worker that doesn't publish the figure."""
    site = make_site(active_decode_blocks_threshold=0.5, router_queue_threshold=1.0)
    assert any("this frontend's own requests only" in line for line in caplog.messages)
    for _ in range(2):
        site.worker(engines(), figures={})
    for name in ("total_kv_blocks", "max_num_batched_tokens"):
        assert len([line for line in caplog.messages if f"publishes no {name}" in line]) == 1
    assert site.post(TEXT, SHORT).status_code == 200
