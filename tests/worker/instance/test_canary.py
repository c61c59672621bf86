"""The canary: when an engine is asked, what its silence means, and that Ready stays routable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.waiting import until

from dynamo.llm import open_model
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.client import Client
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Abort, Sink
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.echo import EchoCore
from dynamo.worker.instance.canary import MARK, Canary, health_check
from dynamo.worker.instance.serving import Serving, serve_engine
from dynamo.worker.settings import WorkerSettings

PATH = "dyn://tests.backend.generate"


# -- pure


def test_silence_is_asked_about() -> None:
    """After the wait, once; output of any request puts it off and is proof enough."""
    canary = Canary(10.0, 3.0, 0.0)
    assert not canary.tick(9.9)
    canary.spoke(9.0)
    assert not canary.tick(18.9)
    assert canary.tick(19.0)
    assert not canary.tick(20.0)
    canary.spoke(21.0)
    assert not canary.tick(23.0)
    assert canary.failure == ""


def test_no_answer_is_a_failure_until_it_speaks() -> None:
    """After the timeout; it is asked again, and its first word ends it."""
    canary = Canary(10.0, 3.0, 0.0)
    assert canary.tick(10.0)
    assert not canary.tick(12.9)
    assert canary.failure == ""
    assert not canary.tick(13.0)
    assert "within 3 s" in canary.failure
    assert not canary.tick(22.9)
    assert canary.tick(23.0)
    canary.failed("it says no", 23.1)
    assert canary.failure == "it says no"
    canary.spoke(24.0)
    assert canary.failure == ""


def test_our_own_delay_is_not_the_engines() -> None:
    """A loop that stood still heard nothing; that time doesn't count."""
    canary = Canary(10.0, 3.0, 0.0)
    assert canary.tick(10.0)
    canary.postpone(60.0)
    assert not canary.tick(71.0)
    assert canary.failure == ""
    canary.spoke(71.0)
    canary.postpone(5.0)
    assert not canary.tick(85.9)
    assert canary.tick(86.0)


def settings(engine: str = "echo_core", **more: Any) -> WorkerSettings:
    quick = {"health_check_enabled": True, "canary_wait_time_secs": 0.2, "health_check_request_timeout_secs": 0.3}
    return WorkerSettings(engine=engine, endpoint=PATH, system_port=0, **{**quick, **more})


def test_what_is_asked(tmp_path: Path) -> None:
    """One token of one token, text for a text engine, nothing of who keeps what it computes; or as the setting says."""
    card = open_model(None, name="m").card
    plain = health_check(card, settings())
    assert isinstance(plain, PreprocessedRequest)
    assert (len(plain.token_ids), plain.stop_conditions.max_tokens) == (1, 1)
    card.role = "prefill"
    assert health_check(card, settings()) is None
    file = tmp_path / "payload.json"
    file.write_text(json.dumps({"token_ids": [7, 8], MARK: True}))
    for given in (f"@{file}", file.read_text()):
        asked = health_check(card, settings(health_check_payload=given))
        assert isinstance(asked, PreprocessedRequest)
        assert (asked.model, asked.token_ids) == ("m", [7, 8])
    card.model_input = "text"
    card.role = "aggregated"
    assert isinstance(health_check(card, settings()), TextRequest)


@pytest.mark.parametrize(
    ("given", "said"),
    [("{", "no JSON"), ("[1]", "neither a JSON object nor a file"), ('{"token_ids": "x"}', "is no request")],
)
def test_a_bad_payload_is_named(given: str, said: str) -> None:
    """At the start, by the flag's name."""
    with pytest.raises(InvalidArgument, match=said) as error:
        health_check(open_model(None).card, settings(health_check_payload=given))
    assert "--health-check-payload" in error.value.message


# -- an engine that hangs, behind an endpoint


class Hanging(EchoCore):
    """echo_core, which can be told to say nothing any more, or to fail at everything."""

    error: Exception | None = None
    asked = 0
    aborted = 0

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        self.asked += 1
        if self.error is not None:
            sink.fail(self.error)
        abort = super().submit(request, sink)

        def counted() -> None:
            self.aborted += 1
            abort()

        return counted

    async def hang(self) -> None:
        await self._ticker.stop()

    def go_on(self) -> None:
        self._ticker.start()


class World:
    """What is served, and a client that has the routing's view."""

    def __init__(self, engine: Hanging, serving: Serving, client: Client) -> None:
        self.engine, self.serving, self.client = engine, serving, client

    async def health(self) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(f"http://127.0.0.1:{self.serving.system_port}/health")

    @property
    def routed(self) -> bool:
        return bool(self.client.instance_ids())


def serve(body: Callable[[World], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Run `body` with a served `Hanging`."""
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "2")

    async def main() -> None:
        model, asked = open_model(None, name="m"), settings(**more)
        async with await DistributedRuntime.in_memory() as runtime:
            engine = Hanging(asked, model)
            serving = await serve_engine(runtime, engine, model, asked)
            client = await runtime.endpoint(PATH).client()
            await client.wait_for_instances()
            try:
                await body(World(engine, serving, client))
            finally:
                await serving.stop(0.0)

    asyncio.run(main())


def test_a_healthy_engine_is_asked_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle, it answers again and again; nobody notices, and it isn't counted as requests."""

    async def body(world: World) -> None:
        await until("it was asked three times", lambda: world.engine.asked >= 3)
        assert world.routed
        assert (await world.health()).status_code == 200
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{world.serving.system_port}/metrics")).text
        (counted,) = [x for x in text.splitlines() if x.startswith("dynamo_component_requests_total{")]
        assert counted.endswith(" 0.0")

    serve(body, monkeypatch)


def test_an_engine_that_hangs_leaves_routing_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/health` says why; what it was asked doesn't pile up; it comes back by itself."""

    async def body(world: World) -> None:
        await world.engine.hang()
        await until("it is out of routing", lambda: not world.routed)
        found = await world.health()
        assert (found.status_code, found.json()["endpoints"]) == (503, {"generate": "notready"})
        assert "did not answer a health check within 0.3 s" in found.json()["reasons"][0]
        asked = world.engine.asked
        await until("it is asked again", lambda: world.engine.asked >= asked + 2)
        await until("what it did not answer is taken back", lambda: world.engine.load().running == 0)
        world.engine.go_on()
        await until("it is back", lambda: world.routed)
        assert (await world.health()).status_code == 200

    serve(body, monkeypatch)


def test_an_engine_that_fails_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the reason."""

    async def body(world: World) -> None:
        world.engine.error = EngineError("CUDA error: an illegal memory access was encountered")
        await until("it is out of routing", lambda: not world.routed)
        assert "illegal memory access" in (await world.health()).json()["reasons"][0]
        world.engine.error = None
        await until("it is back", lambda: world.routed)

    serve(body, monkeypatch)


def test_traffic_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that streams is not asked, however long that takes; a request to it brings a broken one back."""

    async def body(world: World) -> None:
        request = {"model": "m", "token_ids": [65] * 300, "stop_conditions": {"max_tokens": 300, "ignore_eos": True}}
        asked = world.engine.asked
        items = [item async for item in world.client.direct(request, world.client.instance_ids()[0])]
        assert len(items) >= 300
        assert world.engine.asked == asked + 1, "the request itself"

    serve(body, monkeypatch, canary_wait_time_secs=0.5)


def test_without_the_setting_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default, as NVIDIA Dynamo's."""

    async def body(world: World) -> None:
        assert world.serving.watch is None

    serve(body, monkeypatch, health_check_enabled=False)


@pytest.mark.parametrize("name", ["echo_core", "echo_full", "mocker"])
async def test_every_engine_answers_its_own(name: str) -> None:
    """The request for its kind is one that it takes."""
    model, asked = open_model(None, name="m"), settings(name)
    async with await DistributedRuntime.in_memory() as runtime:
        engine: Any = create_engine(asked, model)
        whole, heard = engine.submit, list[Any]()

        def submit(request: Any, sink: Any) -> Abort:
            heard.append(request)
            abort: Abort = whole(request, sink)
            return abort

        engine.submit = submit
        serving = await serve_engine(runtime, engine, model, asked)
        await until("it was asked twice", lambda: len(heard) >= 2)
        assert serving.served.readiness().ready
        await serving.stop(0.0)
