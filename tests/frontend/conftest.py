"""A whole frontend in this process, on a real port, over the memory runtime, with scripted workers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import httpx
import openai
import pytest
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import eventually

from dynamo.frontend.server import serve_http
from dynamo.frontend.settings import FrontendSettings
from dynamo.llm.model_card import ModelCard
from dynamo.llm.protocols import delta
from dynamo.runtime import DistributedRuntime, MemoryWorld
from dynamo.runtime.process.settings import changed
from dynamo.runtime.process.shutdown import ShutdownSignal
from dynamo.runtime.request_plane.server import Incoming

T = TypeVar("T")
QUICK = FrontendSettings(
    http_host="127.0.0.1", http_port=0, shutdown_delay_secs=0.0, graceful_shutdown_timeout_secs=2.0
)


class Echo:
    """A tokens engine that says the prompt again, one token per turn of the loop."""

    def __init__(self, delay: float = 0.0) -> None:
        self.delay = delay
        self.seen: list[dict[str, Any]] = []
        self.cancelled = 0
        self.running = 0
        self.hold: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, incoming: Incoming) -> None:
        self.seen.append(incoming.payload)
        self.running += 1
        task = asyncio.get_running_loop().create_task(self._speak(incoming))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            self.cancelled += 1
            task.cancel()

        incoming.on_cancel(cancel)

    async def _speak(self, incoming: Incoming) -> None:
        try:
            await self.speak(incoming, incoming.payload)
        finally:
            self.running -= 1

    async def speak(self, incoming: Incoming, payload: dict[str, Any]) -> None:
        ends = payload.get("stop_conditions", {})
        ids = payload["token_ids"]
        limit = ends.get("max_tokens") or len(ids)
        for index in range(limit):
            await asyncio.sleep(self.delay)
            if self.hold is not None:
                await self.hold.wait()
            incoming.send(self.say(payload, ids[index % len(ids)], "length" if index + 1 == limit else None))
        incoming.finish()

    def say(self, payload: dict[str, Any], token: int, finish: str | None) -> Any:
        wanted = payload.get("output_options", {})
        extras: dict[str, Any] = {}
        if wanted.get("logprobs") is not None:
            extras = {"log_probs": [-0.5], "top_logprobs": [[[token, -0.5], [65, -1.5]]]}
        if wanted.get("prompt_logprobs") is not None:
            extras["prompt_logprobs"] = [None] + [-0.25] * (len(payload["token_ids"]) - 1)
        return delta([token], finish, extras or None)


class Loud(Echo):
    """Says the first token, 500 times at once: what isn't read fills any buffer after few messages."""

    async def speak(self, incoming: Incoming, payload: dict[str, Any]) -> None:
        limit, at_once = payload["stop_conditions"]["max_tokens"], 500
        for said in range(at_once, limit + 1, at_once):
            await asyncio.sleep(self.delay)
            incoming.send(delta(payload["token_ids"][:1] * at_once, "length" if said == limit else None))
        incoming.finish()


class Site:
    """The frontend, its loop in a thread of its own, and the workers."""

    def __init__(self, settings: FrontendSettings) -> None:
        self.settings = settings
        self.world = MemoryWorld()
        self.url = self.grpc = ""
        self.failure: BaseException | None = None
        self.workers: list[DistributedRuntime] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="site")
        self._thread.start()
        assert self._ready.wait(10), "the frontend did not start"
        if self.failure is not None:
            self._thread.join(10)
            raise self.failure

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            try:
                runner.run(self._main())
            except BaseException as error:
                self.failure = error
                self._ready.set()

    async def _main(self) -> None:
        self.leaving = ShutdownSignal()
        self.runtime = await DistributedRuntime.in_memory(self.world)
        try:
            await serve_http(
                self.runtime, self.settings, on_ready=self._serving, leaving=self.leaving, on_grpc=self._serving_grpc
            )
        finally:
            for worker in self.workers:
                await worker.shutdown(0)
            await self.runtime.shutdown(0)

    def _serving(self, url: str) -> None:
        self.url = url
        self._ready.set()

    def _serving_grpc(self, address: str) -> None:
        self.grpc = address

    def run(self, work: Coroutine[Any, Any, T], within: float = 20) -> T:
        """Run on the site's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within)

    def call(self, function: Callable[[], Any]) -> None:
        self._loop.call_soon_threadsafe(function)

    def worker(
        self, engine: Callable[[Incoming], None], name: str = "m", *, path: str = "test.backend.generate",
        wait: bool = True, card: Any = None, figures: dict[str, Any] | None = None, **facts: Any,
    ) -> DistributedRuntime:  # fmt: skip
        """Start a worker that serves `engine`; returns when the frontend routes to it."""

        async def start() -> DistributedRuntime:
            runtime = await DistributedRuntime.in_memory(self.world)
            self.workers.append(runtime)
            made = ModelCard(name=name, **{"context_length": 1024, **facts}).to_dict() if card is None else card
            await runtime.endpoint(path).start(engine, card=made, figures=figures)
            return runtime

        runtime = self.run(start())
        if wait:
            eventually("the frontend routes to the worker", lambda: runtime.id in self.instances(), 10)
        return runtime

    def instances(self) -> list[int]:
        return [instance["instance_id"] for instance in httpx.get(f"{self.url}/health").json()["instances"]]

    def stop_worker(self, runtime: DistributedRuntime, grace: float = 5) -> None:
        async def stop() -> None:
            await runtime.shutdown(grace)

        self.run(stop())

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0, **{"timeout": 20, **options})

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=20, **options)

    def socket(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        found = 0.0
        for family in text_string_to_metric_families(httpx.get(f"{self.url}/metrics").text):
            for sample in family.samples:
                if sample.name == f"dynamo_frontend_{name}" and labels.items() <= sample.labels.items():
                    found += sample.value
        return found

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.call(self.leaving.signal)
            self.call(self.leaving.signal)
        self._thread.join(20)
        assert not self._thread.is_alive(), "the frontend did not leave"
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def make_site() -> Iterator[Callable[..., Site]]:
    """Frontends with settings of the test's choice."""
    made: list[Site] = []

    def make(**settings: Any) -> Site:
        made.append(Site(changed(QUICK, **settings)))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    """A frontend without workers."""
    return make_site()


@pytest.fixture
def echo() -> Echo:
    """An engine for `site.worker`."""
    return Echo()


@pytest.fixture
def served(site: Site, echo: Echo) -> Site:
    """A frontend with one echo worker that serves model `m`."""
    site.worker(echo)
    return site


@pytest.fixture
def engines() -> type[Echo]:
    """The class, for tests that script their own."""
    return Echo


@pytest.fixture
def within() -> Callable[..., Any]:
    """`eventually`, for tests, with less patience."""

    def soon(what: str, check: Callable[[], Any], seconds: float = 10.0) -> Any:
        return eventually(what, check, seconds)

    return soon
