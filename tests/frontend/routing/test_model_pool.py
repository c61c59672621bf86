"""Models come and go with their workers; failures of one leave the others alone; attempts move on."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from dynamo.frontend.routing import model_watcher
from dynamo.frontend.routing.model_loader import Loader
from dynamo.llm.model_card import FileRef, ModelCard
from dynamo.llm.protocols import delta
from dynamo.runtime.errors import CannotConnect, CapacityExceeded, EngineShutdown, InvalidArgument, WorkerUnavailable
from dynamo.runtime.http.system_server import runtime_health
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.process.backoff import Backoff
from dynamo.runtime.transport.bus import Verdict

TEXT = "/v1/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 5}


def health(site: Any) -> dict[str, Any]:
    body: dict[str, Any] = httpx.get(site.url + "/health").json()
    return body


def test_no_worker_yet_is_503(site: Any) -> None:
    """Without workers the frontend is healthy, says so, and answers 503 with Retry-After."""
    answer = site.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert health(site)["status"] == "healthy"
    assert "no model has a worker yet" in health(site)["message"]
    assert httpx.get(site.url + "/v1/models").json()["data"] == []
    assert httpx.get(site.url + "/live").status_code == 200


def test_come_and_go(site: Any, echo: Any, within: Any) -> None:
    """A model is there with its first worker, gone (503, not 404) with its last, and comes back."""
    first = site.worker(echo)
    second = site.worker(echo)
    found = health(site)
    assert found["models"] == {"m": {"status": "ready", "instances": 2}}
    assert found["endpoints"] == ["dyn://test.backend.generate"]
    assert {instance["instance_id"] for instance in found["instances"]} == {first.id, second.id}
    assert site.metric("model_ready", model="m") == 1
    for worker in (first, second):
        assert site.post(TEXT, HELLO).status_code == 200
        site.stop_worker(worker)
    within("both left", lambda: not site.instances())
    answer = site.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_instances")
    assert site.metric("model_ready", model="m") == 0
    site.worker(echo)
    assert site.post(TEXT, HELLO).status_code == 200


def test_a_namespace_is_listened_to_again(site: Any, echo: Any, within: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be asked for a moment, or for a mistake, is named, and taken in without a newcomer."""
    listen, failures = Loader.listen, [CannotConnect("the bus is away"), ZeroDivisionError("a mistake")]

    async def failing(loader: Loader, namespace: str) -> None:
        if failures:
            raise failures.pop(0)
        await listen(loader, namespace)

    monkeypatch.setattr(Loader, "listen", failing)
    monkeypatch.setattr(model_watcher, "RETRY_LOAD", Backoff(0.1, 0.2))
    site.worker(echo)
    assert failures == []
    assert site.post(TEXT, HELLO).status_code == 200


def test_health_says_who_can_be_asked(site: Any, echo: Any, within: Any) -> None:
    """Where an instance runs, and whether a request could go there now: what the operator asks for."""
    both = [site.worker(echo), site.worker(echo)]

    def asked() -> dict[int, bool]:
        found = health(site)["instances"]
        assert {one["host"] for one in found} == {socket.gethostname()}
        return {one["instance_id"]: one["routable"] for one in found}

    assert asked() == {both[0].id: True, both[1].id: True}
    site.call(both[0].bus.disconnect)  # alive as far as the store knows, and nobody listens
    site.call(
        lambda: site.runtime.registry.observe(
            InstanceKey(EndpointPath("test", "backend", "generate"), both[0].id), Verdict.SILENT
        )
    )
    within("one can't be asked", lambda: asked() == {both[0].id: False, both[1].id: True})
    site.call(site.runtime.bus.disconnect)
    within("nobody can be asked", lambda: asked() == {both[0].id: False, both[1].id: False})
    assert "NATS is away" in health(site)["message"]


def test_all_workers_get_requests(site: Any, engines: Any) -> None:
    """Round-robin is even over the workers of a model."""
    both = [engines(), engines()]
    for engine in both:
        site.worker(engine)
    for _ in range(10):
        site.post(TEXT, HELLO)
    assert [len(engine.seen) for engine in both] == [5, 5]


@pytest.mark.parametrize("mode", ["least-loaded", "power-of-two"])
def test_busy_worker_is_spared(make_site: Any, engines: Any, within: Any, mode: str) -> None:
    """Load-aware modes send new requests to the worker that has none."""
    site = make_site(router_mode=mode)
    both = [engines(), engines()]
    for engine in both:
        engine.hold = asyncio.Event()
        site.worker(engine)
    long = threading.Thread(target=site.post, args=(TEXT, {**HELLO, "max_tokens": 20}))
    long.start()
    within("one is busy", lambda: sum(engine.running for engine in both) == 1)
    busy, idle = sorted(both, key=lambda engine: -engine.running)
    idle.hold = None
    for _ in range(3):
        site.post(TEXT, {**HELLO, "max_tokens": 1})
    assert (len(busy.seen), len(idle.seen)) == (1, 3)
    site.call(busy.hold.set)
    long.join(10)


def test_hold_waits_for_a_first_worker(make_site: Any, engines: Any) -> None:
    """With workerWaitTimeoutSeconds a request waits for its model; the limit is kept where none comes."""
    site = make_site(worker_wait_timeout_secs=5)
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(site.post(TEXT, HELLO).status_code))
    asking.start()
    site.worker(engines())
    asking.join(10)
    assert found == [200]
    short = make_site(worker_wait_timeout_secs=0.2)
    began = time.monotonic()
    assert short.post(TEXT, HELLO).status_code == 503
    assert 0.2 <= time.monotonic() - began < 5


def test_unreadable_card_is_named(served: Any, echo: Any, within: Any) -> None:
    """A worker whose card can't be read is shown as such; other models serve on."""
    served.worker(echo, wait=False, card={"name": "odd", "tokenizer": 7})
    within("it is named", lambda: health(served).get("unreadable"))
    assert "tokenizer" in health(served)["unreadable"][0]["reason"]
    assert served.post(TEXT, HELLO).status_code == 200
    assert served.post(TEXT, {**HELLO, "model": "odd"}).status_code == 503


def test_card_with_missing_files_fails_alone(served: Any, echo: Any, within: Any) -> None:
    """A card whose files no worker has is `failed` with the reason; other models serve on."""
    missing = FileRef(digest="0" * 64, size=10, name="tokenizer.json")
    card = ModelCard(name="broken", tokenizer="hf", files={"tokenizer": missing}).to_dict()
    served.worker(echo, wait=False, card=card)
    within("it failed", lambda: health(served)["models"].get("broken", {}).get("status") == "failed")
    assert "tokenizer.json" in health(served)["models"]["broken"]["reason"]
    assert [served.metric("model_ready", model=name) for name in ("m", "broken")] == [1, 0]
    answer = served.post(TEXT, {**HELLO, "model": "broken"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert served.post(TEXT, HELLO).status_code == 200


def test_a_card_that_would_fill_the_disk_fails_with_the_reason(served: Any, echo: Any, within: Any) -> None:
    """Its worker reads why in the record of this frontend; nothing is fetched, and other models serve on."""
    files = {f"chat_template.{n}": FileRef(digest=f"{n:064x}", size=1 << 29, name="t.jinja") for n in range(3)}
    card = ModelCard(name="greedy", tokenizer="hf", files=files).to_dict()
    worker = served.worker(echo, wait=False, card=card)
    within("its worker knows", lambda: any("1610 MB together" in reason for reason in runtime_health(worker).reasons))
    assert not runtime_health(worker).ready
    assert served.post(TEXT, HELLO).status_code == 200


def test_two_cards_of_one_model_are_two_sets(site: Any, engines: Any) -> None:
    """Workers with different cards serve one name side by side; each request is checked by its own card."""
    site.worker(engines(), context_length=64)
    site.worker(engines(), context_length=2048)
    statuses = {site.post(TEXT, {**HELLO, "prompt": "x" * 100}).status_code for _ in range(40)}
    assert statuses == {200, 400}
    assert health(site)["models"]["m"]["instances"] == 2
    assert len(httpx.get(site.url + "/v1/models").json()["data"]) == 1


def test_models_in_several_namespaces(site: Any, echo: Any) -> None:
    """A frontend of all namespaces serves each one's models."""
    site.worker(echo, "a", path="one.backend.generate")
    site.worker(echo, "a", path="two.backend.generate")
    assert [site.post(TEXT, {**HELLO, "model": "a"}).status_code for _ in range(4)] == [200] * 4


def test_frontend_of_namespaces_that_begin_alike(make_site: Any, echo: Any) -> None:
    """--namespace-prefix goes before --namespace; workers elsewhere are not waited for."""
    site = make_site(namespace_prefix="a-", namespace="b")
    site.worker(echo, "left", path="b.backend.generate", wait=False)
    site.worker(echo, "one", path="a-1.backend.generate")
    site.worker(echo, "two", path="a-2.backend.generate")
    assert sorted(one["id"] for one in httpx.get(f"{site.url}/v1/models").json()["data"]) == ["one", "two"]


def test_frontend_of_one_namespace(make_site: Any, echo: Any) -> None:
    """A frontend of one namespace knows nothing of others."""
    site = make_site(namespace="test")
    site.worker(echo, "other", path="elsewhere.backend.generate", wait=False)
    site.worker(echo)
    assert [m["id"] for m in httpx.get(site.url + "/v1/models").json()["data"]] == ["m"]


def test_frontend_of_one_endpoint(make_site: Any, echo: Any) -> None:
    """The namespace, the component and the endpoint of out=dyn://… all limit; prefill workers are its namespace's."""
    site = make_site(endpoint="test.backend.generate", namespace="test")
    for name, path in (("a", "test.other.generate"), ("b", "test.backend.other"), ("c", "else.backend.generate")):
        site.worker(echo, name, path=path, wait=False)
    site.worker(echo, path="test.prefill.generate", role="prefill", wait=False)
    site.worker(echo)
    assert [m["id"] for m in httpx.get(site.url + "/v1/models").json()["data"]] == ["m"]
    found = httpx.get(site.url + "/health").json()
    assert found["endpoints"] == ["dyn://test.backend.generate"]
    assert {instance["component"] for instance in found["instances"]} == {"backend", "prefill"}


class Refusing:
    """An engine that fails each request with one error, before or after some tokens."""

    def __init__(self, error: Exception, after: int = 0) -> None:
        self.error, self.after, self.seen = error, after, 0

    def __call__(self, incoming: Any) -> None:
        self.seen += 1
        for token in incoming.payload["token_ids"][: self.after]:
            incoming.send(delta([token]))
        incoming.fail(self.error)


@pytest.mark.parametrize("error", [WorkerUnavailable(), CapacityExceeded(), EngineShutdown()])
def test_retryable_failure_before_the_first_token_moves_on(site: Any, echo: Any, error: Exception) -> None:
    """Another worker answers, unseen."""
    refusing = Refusing(error)
    site.worker(refusing)
    site.worker(echo)
    for stream in (False, True):
        for _ in range(3):
            answer = site.post(TEXT, {**HELLO, "stream": stream})
            assert answer.status_code == 200
    assert refusing.seen > 0
    assert len(echo.seen) == 6


def test_full_everywhere_is_503(site: Any) -> None:
    """Where every worker is full the client is told to come back."""
    engines = [Refusing(CapacityExceeded("no room")) for _ in range(3)]
    for engine in engines:
        site.worker(engine)
    answer = site.post(TEXT, {**HELLO, "stream": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "full")
    assert answer.headers["retry-after"]
    assert [engine.seen for engine in engines] == [1, 1, 1]
    labels = {
        "model": "m",
        "endpoint": "completions",
        "request_type": "stream",
        "status": "error",
        "error_type": "overload",
    }
    assert site.metric("requests_total", **labels) == 1


def test_refusal_of_the_engine_is_the_clients_400(site: Any) -> None:
    """What the engine says of the request itself is not retried."""
    engines = [Refusing(InvalidArgument("logit_bias is not supported by this engine")) for _ in range(2)]
    for engine in engines:
        site.worker(engine)
    answer = site.post(TEXT, HELLO)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert sum(engine.seen for engine in engines) == 1


def test_failure_in_mid_stream_is_one_error_event(site: Any) -> None:
    """After the first token an error is one event, without `[DONE]`; the SDK raises it."""
    site.worker(Refusing(EngineShutdown("the engine stopped"), after=2))
    raw = site.post(TEXT, {**HELLO, "stream": True})
    assert raw.status_code == 200
    lines = raw.text.split("\n\n")
    assert lines[-2] == (
        'data: {"error":{"message":"the engine stopped","type":"api_error","param":null,"code":"shutdown"}}'
    )
    assert "[DONE]" not in raw.text
    with site.client() as client, pytest.raises(openai.APIError, match="the engine stopped"):
        list(client.completions.create(model="m", prompt="hello", stream=True))
    assert site.post(TEXT, HELLO).status_code == 500


def test_migration_goes_on_elsewhere(make_site: Any, engines: Any) -> None:
    """With a migration limit the rest of the text comes from another worker; nothing is lost or doubled."""

    class Counting(engines):  # type: ignore[misc]
        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            for index in range(payload["stop_conditions"]["max_tokens"]):
                incoming.send(delta([97 + len(payload["token_ids"]) % 26]))
                payload["token_ids"].append(0)
                await asyncio.sleep(0)
                if index == 2 and self.delay:
                    incoming.fail(EngineShutdown())
                    return
            incoming.send(delta([], "length"))
            incoming.finish()

    site = make_site(migration_limit=3)
    site.worker(Counting(delay=1.0))
    site.worker(Counting())
    for _ in range(4):
        answer = site.post(TEXT, {"model": "m", "prompt": "x", "max_tokens": 8, "ignore_eos": True}).json()
        assert answer["choices"][0]["text"] == "bcdefghi"
        assert answer["usage"]["completion_tokens"] == 8
        assert answer["usage"]["prompt_tokens"] == 1
    assert site.metric("model_migration_total", migration_type="ongoing_request", model="m") >= 1


def asked_in_vain(site: Any, refusing: Refusing, within: Any) -> Future[Any]:
    """A request that a worker has refused, and its answer to come."""
    pool = ThreadPoolExecutor(1)
    asking = pool.submit(site.post, TEXT, HELLO)
    pool.shutdown(wait=False)
    within("it was refused", lambda: refusing.seen > 0)
    return asking


@pytest.mark.parametrize(
    ("card", "status"),
    [
        ({}, 200), ({"context_length": 2048}, 200), ({"kv_cache_block_size": 32}, 200),
        ({"context_length": 64}, 503), ({"eos_token_ids": [7]}, 503), ({"add_bos": True}, 503),
    ],
)  # fmt: skip
def test_hold_is_for_those_that_lost_the_only_worker_too(
    make_site: Any, engines: Any, within: Any, card: dict[str, Any], status: int
) -> None:
    """Refused by a worker that leaves, and none is left: the request waits for the next one, if that has its tokens."""
    site, refusing = make_site(worker_wait_timeout_secs=8), Refusing(WorkerUnavailable("it leaves"))
    leaving = site.worker(refusing)
    asking = asked_in_vain(site, refusing, within)
    site.stop_worker(leaving)
    within("the frontend knows of none", lambda: not site.instances())
    site.worker(engines(), **card)
    assert asking.result(20).status_code == status


def test_who_lost_the_last_worker_of_a_card_goes_to_the_next_one_s(make_site: Any, engines: Any, within: Any) -> None:
    """A rollout that changes the block size: the last of the old ones refuses as it leaves, and nobody notices."""
    site, refusing = make_site(), Refusing(WorkerUnavailable("it leaves"))
    leaving = site.worker(refusing)
    asking = asked_in_vain(site, refusing, within)
    site.worker(engines(), kv_cache_block_size=32)
    site.stop_worker(leaving)
    assert asking.result(20).status_code == 200


def test_without_hold_who_lost_the_only_worker_is_told(make_site: Any, within: Any) -> None:
    """At once, so that the client may go elsewhere."""
    site, refusing = make_site(), Refusing(WorkerUnavailable("it leaves"))
    leaving = site.worker(refusing)
    asking = asked_in_vain(site, refusing, within)
    site.stop_worker(leaving)
    assert asking.result(5).status_code == 503


class Garbage:
    """An engine that sends what nobody can read."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __call__(self, incoming: Any) -> None:
        incoming.send(self.item)


@pytest.mark.parametrize(
    "item", ["x", 7, None, [1], [["a"], None, None], [[1], None, 5], [["x"], "length", None], ["text", None, None],
             {"a": 1}, {"token_ids": "x"}, [[-5], None, None], [[2**40], None, None]]
)  # fmt: skip
def test_garbage_of_a_worker_is_one_error(served: Any, item: Any) -> None:
    """A worker's garbage ends its own request with a 500, or does no harm; others are served."""
    served.worker(Garbage(item), "garbage")
    answer = served.post(TEXT, {**HELLO, "model": "garbage"}, headers={"x-request-timeout-ms": "1000"})
    assert answer.status_code in {500, 504}, answer.text
    assert answer.json()["error"]["type"] == "api_error"
    assert served.post(TEXT, HELLO).status_code == 200


def test_original_dict_deltas_are_understood(site: Any) -> None:
    """Engines written for NVIDIA Dynamo send dicts; a clean end without a reason is `stop`."""

    def engine(incoming: Any) -> None:
        for token in incoming.payload["token_ids"]:
            incoming.send({"token_ids": [token]})
        incoming.finish()

    site.worker(engine)
    choice = site.post(TEXT, HELLO).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hello", "stop") or choice["finish_reason"] == "length"


def test_time_limit_of_the_request(site: Any, engines: Any, within: Any) -> None:
    """`x-request-timeout-ms` ends a request that takes too long, and frees the engine."""
    engine = engines(delay=0.05)
    site.worker(engine)
    answer = site.post(TEXT, {**HELLO, "prompt": "x" * 500, "max_tokens": 500}, headers={"x-request-timeout-ms": "200"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
    within("the engine is free", lambda: engine.running == 0)
    bad = site.post(TEXT, HELLO, headers={"x-request-timeout-ms": "soon"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-request-timeout-ms")


def test_500_streams_are_exact(site: Any, engines: Any) -> None:
    """500 streams at once all end with exactly their own text, and are counted."""
    site.worker(engines(delay=0.001))

    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="x", max_retries=0, timeout=60) as api:

            async def one(prompt: str) -> str:
                opened = await api.completions.create(model="m", prompt=prompt, max_tokens=len(prompt), stream=True)
                return "".join([chunk.choices[0].text async for chunk in opened])

            prompts = [f"stream {i} {'abcdefg' * (1 + i % 5)}" for i in range(500)]
            assert await asyncio.gather(*(one(p) for p in prompts)) == prompts

    asyncio.run(run())
    labels = {"model": "m", "endpoint": "completions", "request_type": "stream", "status": "success", "error_type": ""}
    assert site.metric("requests_total", **labels) == 500
    assert site.metric("time_to_first_token_seconds_count", model="m") == 500
    assert site.metric("inflight_requests", model="m") == 0
