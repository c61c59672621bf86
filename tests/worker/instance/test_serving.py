"""An engine behind an endpoint, over a runtime without servers: what clients, probes and dashboards see."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from docs.generate.api.metrics_page import undocumented

from dynamo.llm import card_from_dict, open_model
from dynamo.llm.models.file_cache import FileCache, fetch_files
from dynamo.llm.protocols import LENGTH, PreprocessedRequest, SamplingOptions, read_delta
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DeadlineExceeded, DynamoException, EngineError, EngineShutdown, InvalidArgument
from dynamo.runtime.http.system_server import SystemServer
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.peer import Incoming
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import EngineFacts
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.mocker.rank import MockRequest
from dynamo.worker.engines.mocker.scheduler import Sequence
from dynamo.worker.instance.handlers import guided
from dynamo.worker.instance.serving import Serving, serve_engine
from dynamo.worker.instance.sinks import RequestSink
from dynamo.worker.settings import WorkerSettings

PATH = EndpointPath("tests", "backend", "generate")


class Stream:
    """One request as its client sees it."""

    def __init__(self, runtime: DistributedRuntime, payload: Any, context: Context | None = None) -> None:
        self.sent: list[Any] = []
        self.deltas: list[Any] = []
        self.ends: list[DynamoException | None] = []
        self.changed = asyncio.Event()
        key = InstanceKey(PATH, runtime.id)
        self.call = runtime.caller.open(
            key, payload, context=context or Context(), on_item=self._item, on_end=self._end
        )  # fmt: skip

    def _item(self, data: Any, last: bool) -> None:
        self.sent.append(data)
        self.deltas.append(read_delta(data))
        self.changed.set()

    def _end(self, error: DynamoException | None) -> None:
        self.ends.append(error)
        self.changed.set()

    @property
    def tokens(self) -> list[int]:
        return [token for produced, _, _ in self.deltas for token in produced]

    async def until(self, what: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not what():
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> DynamoException | None:
        await self.until(lambda: self.ends)
        return self.ends[0]


class World:
    """A served engine and the runtime it is on."""

    def __init__(self, runtime: DistributedRuntime, serving: Serving) -> None:
        self.runtime, self.serving = runtime, serving

    def open(self, max_tokens: int = 8, *, context: Context | None = None, **more: Any) -> Stream:
        stop = {"max_tokens": max_tokens, "ignore_eos": True}
        request = {"model": "m", "token_ids": [5, 6, 7], "stop_conditions": stop, **more}
        return Stream(self.runtime, request, context)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(f"http://127.0.0.1:{self.serving.system_port}{path}")


def serve(
    body: Callable[[World], Awaitable[None]],
    change: Callable[[Any], None] | None = None,
    template: Path | None = None,
) -> None:
    """Run `body` with a served mock engine, which `change` may have broken before."""

    async def main() -> None:
        model = open_model(None, name="m", chat_template=template)
        settings = WorkerSettings(engine="mocker", endpoint=str(PATH), system_port=0)
        engine = create_engine(settings, model)
        if change is not None:
            change(engine)
        async with await DistributedRuntime.in_memory() as runtime:
            serving = await serve_engine(runtime, engine, model, settings)
            client = await runtime.endpoint(PATH).client()
            await client.wait_for_instances()
            try:
                await body(World(runtime, serving))
            finally:
                await serving.stop(0.0)

    asyncio.run(main())


def test_a_stream_is_deltas() -> None:
    """One delta per token, the reason in the last one, cached tokens in the first."""

    async def body(world: World) -> None:
        stream = world.open(max_tokens=5)
        assert await stream.end() is None
        assert len(stream.tokens) == 5
        assert stream.deltas[0][2] == {"cached_tokens": 0}
        assert [finish for _, finish, _ in stream.deltas][-1] == LENGTH
        assert {type(data) for data in stream.sent[1:-1]} == {int}, "a token alone travels as its id"

    serve(body)


def test_the_record_says_how_to_use_the_model() -> None:
    """The card stands in the registration, with the engine's own limits."""

    async def body(world: World) -> None:
        client = await world.runtime.endpoint(PATH).client()
        (instance,) = client.instances()
        assert instance.card is not None
        card = card_from_dict(instance.card)
        assert (card.name, card.kv_cache_block_size, card.context_length) == ("m", 64, 131072)
        assert instance.figures["total_kv_blocks"] == 16384

    serve(body)


def test_the_files_of_the_card_can_be_had(tmp_path: Path) -> None:
    """A frontend without the model gets each file that the card names from the instance, as it is."""
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")

    async def body(world: World) -> None:
        (instance,) = (await world.runtime.endpoint(PATH).client()).instances()
        assert instance.card is not None
        refs = card_from_dict(instance.card).files

        async def control(op: str, asked: Any) -> Any:
            return await world.runtime.caller.control(instance.key, op, asked, timeout=5.0)

        files = await fetch_files(control, refs, cache=FileCache(tmp_path / "cache"))
        assert template.read_text() in {path.read_text() for path in files.values()}

    serve(body, template=template)


def test_cancel_frees_the_engine() -> None:
    """A client that leaves takes its request out of the engine, and is counted as such."""

    async def body(world: World) -> None:
        stream = world.open(max_tokens=100_000)
        await stream.until(lambda: stream.tokens)
        stream.call.cancel()
        async with asyncio.timeout(5):
            while world.serving.engine.load().running:  # noqa: ASYNC110 - an engine says nothing of its slots
                await asyncio.sleep(0.002)
        assert "dynamo_component_cancellation_total" in (text := (await world.get("/metrics")).text)
        assert value(text, "dynamo_component_cancellation_total") == 1
        assert value(text, "dynamo_component_inflight_requests") == 0

    serve(body)


def test_a_deadline_ends_the_request_here_too() -> None:
    """The remaining time travels along: the stream fails and the engine is free."""

    async def body(world: World) -> None:
        stream = world.open(max_tokens=100_000, context=Context(deadline=time.monotonic() + 0.2))
        assert isinstance(await stream.end(), DeadlineExceeded)
        async with asyncio.timeout(5):
            while world.serving.engine.load().running:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.002)

    serve(body)


@pytest.mark.parametrize("payload", [None, 7, [], {"model": "m"}, {"model": "m", "token_ids": "text"}])
def test_garbage_is_refused_and_harms_nobody(payload: Any) -> None:
    """A request of another shape is the caller's mistake; the next one is served."""

    async def body(world: World) -> None:
        assert isinstance(await Stream(world.runtime, payload).end(), InvalidArgument)
        assert await world.open().end() is None

    serve(body)


def test_an_engine_that_raises_fails_this_request_alone() -> None:
    """Whatever `submit` raises becomes the request's error."""

    def breaks(engine: Any) -> None:
        whole = engine.submit

        def submit(request: Any, sink: Any) -> Any:
            if request.token_ids == [0]:
                raise ZeroDivisionError("oops")
            return whole(request, sink)

        engine.submit = submit

    async def body(world: World) -> None:
        error = await world.open(token_ids=[0]).end()
        assert isinstance(error, EngineError)
        assert "oops" in error.message
        assert await world.open().end() is None

    serve(body, breaks)


@pytest.mark.parametrize(("grace", "tokens", "ends"), [(10.0, 20, type(None)), (0.0, 100_000, EngineShutdown)])
def test_leaving_gives_streams_the_grace(grace: float, tokens: int, ends: type) -> None:
    """Streams that end within the grace are whole; the others fail retryably, once."""

    async def body(world: World) -> None:
        stream = world.open(max_tokens=tokens)
        await stream.until(lambda: stream.tokens)
        await world.serving.stop(grace)
        assert isinstance(await stream.end(), ends)
        assert len(stream.ends) == 1
        async with asyncio.timeout(1):
            await world.serving.stop(grace)  # once more is nothing

    serve(body)


def test_probes_and_dashboards() -> None:
    """`/live` and `/health` answer, `/metrics` has NVIDIA Dynamo's and vLLM's names."""

    async def body(world: World) -> None:
        assert await world.open().end() is None
        health = await world.get("/health")
        assert (health.status_code, health.json()["endpoints"]) == (200, {"generate": "ready"})
        assert (await world.get("/live")).status_code == 200
        text = (await world.get("/metrics")).text
        assert value(text, "dynamo_component_requests_total") == 1
        assert value(text, "dynamo_component_request_duration_seconds_count") == 1
        assert value(text, "vllm:time_to_first_token_seconds_count") == 1
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total"):
            assert value(text, f"vllm:{name}") == 0
        assert 'dynamo_namespace="tests"' in text
        assert undocumented(text) == set()

    serve(body)


def value(text: str, name: str) -> float:
    """The value of a metric with one set of labels."""
    (line,) = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return float(line.rpartition(" ")[2])


async def test_probes_are_answered_while_the_model_loads() -> None:
    """A worker that still loads is live and not ready, so that nobody restarts it for being slow."""
    loading, go_on = asyncio.Event(), asyncio.Event()
    ports: list[int] = []

    model = open_model(None, name="m")
    settings = WorkerSettings(engine="mocker", endpoint=str(PATH), system_port=0)
    engine = create_engine(settings, model)
    whole = engine.start

    async def slow() -> EngineFacts:
        loading.set()
        await go_on.wait()
        return await whole()

    engine.start = slow  # type: ignore[method-assign]
    async with await DistributedRuntime.in_memory() as runtime:
        made = SystemServer.start

        async def noted(self: SystemServer) -> int:
            ports.append(await made(self))
            return ports[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SystemServer, "start", noted)
            starting = asyncio.create_task(serve_engine(runtime, engine, model, settings))
            await loading.wait()
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{ports[0]}") as client:
            assert (await client.get("/live")).status_code == 200
            assert (await client.get("/health")).status_code == 503
            go_on.set()
            serving = await starting
            assert (await client.get("/health")).status_code == 200
        await serving.stop(0.0)


def test_a_start_that_fails_leaves_nothing() -> None:
    """The error comes through, the system server is closed and nothing is registered."""

    def breaks(engine: Any) -> None:
        async def start() -> EngineFacts:
            raise InvalidArgument("the model is broken")

        engine.start = start

    async def body(world: World) -> None:
        raise AssertionError("it must not be served")

    with pytest.raises(InvalidArgument, match="the model is broken"):
        serve(body, breaks)


@pytest.mark.parametrize(
    ("constraint", "way"), [(None, "engine"), ({}, "engine"), ({"json": {}}, "compiler"), ({"regex": "a"}, "refused")]
)
def test_only_constraints_are_compiled(constraint: dict[str, Any] | None, way: str) -> None:
    """A request without one goes straight to the engine, and one that the engine can't keep to goes nowhere."""
    ways: list[str] = []

    def to(name: str) -> Callable[[Any, Any], Callable[[], None]]:
        def submit(request: Any, sink: Any) -> Callable[[], None]:
            ways.append(name)
            return lambda: None

        return submit

    submit = guided(to("engine"), to("compiler"), "tiny", ("json",))
    request = PreprocessedRequest(
        model="m", token_ids=[1], sampling_options=SamplingOptions(guided_decoding=constraint)
    )
    if way == "refused":
        with pytest.raises(InvalidArgument, match=r"guided decoding \(regex\): engine tiny takes json only"):
            submit(request, None)
    else:
        submit(request, None)
    assert ways == ([] if way == "refused" else [way])


def test_requests_leave_nothing_to_the_collector() -> None:
    """What ended, failed or was given up is gone at once: in circles, some hundred prompts would wait for it."""

    async def body(world: World) -> None:
        await world.open(4).end()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert await world.open(4).end() is None
                late = world.open(4, context=Context(deadline=time.monotonic()))
                assert isinstance(await late.end(), DynamoException)
                await give_up(world)
            await world.open(4).end()  # by now the worker has heard of all that was given up
            assert not alive()
        finally:
            gc.enable()

    serve(body)


async def give_up(world: World) -> None:
    stream = world.open(10_000)
    await stream.until(lambda: stream.deltas)
    stream.call.cancel()


def alive() -> list[Any]:
    """The requests that are there."""
    kinds = (Incoming, RequestSink, MockRequest, Sequence)
    return [entry for entry in gc.get_objects() if type(entry) in kinds]
