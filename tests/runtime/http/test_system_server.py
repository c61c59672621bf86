"""The system server of a process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from tests.waiting import until

from dynamo.runtime import CannotConnect, DistributedRuntime
from dynamo.runtime.http.system_server import Health, SystemServer, runtime_health
from dynamo.runtime.transport.memory import MemoryBus


def serve(server: SystemServer, case: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        port = await server.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                await case(client)
        finally:
            await server.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def health(ready: bool = True, **more: Any) -> Callable[[], Health]:
    return lambda: Health(ready, {"generate": ready}, more.get("reasons", []), more.get("notes", []))


def test_ready() -> None:
    """A ready process answers 200 with its endpoints and its uptime."""

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.get("/health")
        assert answer.status_code == 200
        body = answer.json()
        assert body["status"] == "ready"
        assert body["endpoints"] == {"generate": "ready"}
        assert body["uptime"]["secs"] >= 0
        assert (body["reasons"], body["notes"]) == ([], ["it counts wrongly"])

    serve(SystemServer(health(notes=["it counts wrongly"])), case)


def test_not_ready_says_why() -> None:
    """503 with the reasons; `/live` is 200 all the same."""

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["status"] == "notready"
        assert answer.json()["reasons"] == ["frontend 1 is still loading"]
        assert (await client.get("/live")).status_code == 200

    serve(SystemServer(health(False, reasons=["frontend 1 is still loading"])), case)


def test_metrics() -> None:
    """The caller's own registry, in Prometheus' text format."""
    registry = CollectorRegistry()
    Counter("requests", "Requests.", registry=registry).inc(3)

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.get("/metrics")
        assert "requests_total 3.0" in answer.text
        assert answer.headers["content-type"].startswith("text/plain")

    serve(SystemServer(health(), registry), case)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/health", 405)])
def test_what_is_not_served(method: str, path: str, status: int) -> None:
    """Unknown routes and methods are JSON errors."""

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert path in answer.json()["message"]

    serve(SystemServer(health()), case)


def test_head_has_no_body() -> None:
    """Probes may use HEAD."""

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.head("/health")
        assert (answer.status_code, answer.content) == (200, b"")

    serve(SystemServer(health()), case)


def test_a_failing_collector_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    """A bug behind a route is a 500 in JSON, and the server goes on."""

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.get("/health")
        assert answer.status_code == 500
        assert "log says why" in json.loads(answer.content)["message"]
        assert (await client.get("/live")).status_code == 200

    serve(SystemServer(lambda: 1 / 0), case)  # type: ignore[arg-type, return-value]
    assert "/health failed" in caplog.text


def test_a_taken_port() -> None:
    """A port that is in use is one clear sentence."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = SystemServer(health(), port=other.getsockname()[1])
        with pytest.raises(CannotConnect, match=r"can't listen on 127\.0\.0\.1:\d+: Address already in use"):
            asyncio.run(server.start())


def test_stopping_a_server_that_never_started() -> None:
    """Is no error."""
    asyncio.run(SystemServer(health()).stop())


async def test_the_health_of_a_runtime() -> None:
    """Not ready before anything is served, ready with its endpoints, not ready when the program says so or drains."""
    async with await DistributedRuntime.in_memory() as runtime:
        assert runtime_health(runtime) == Health(False, {}, ["no endpoint is served yet"])
        served = await runtime.endpoint("a.b.c").start(lambda incoming: incoming.finish())
        await until("the runtime is ready", lambda: runtime_health(runtime).ready, 5)
        assert runtime_health(runtime) == Health(True, {"c": True}, [])
        bus = runtime.bus
        assert isinstance(bus, MemoryBus)
        bus.disconnect()
        assert runtime_health(runtime) == Health(False, {"c": True}, ["the bus is away: no request can come"])
        bus.reconnect()
        assert runtime_health(runtime).ready
        runtime.set_health_status(False)
        assert runtime_health(runtime) == Health(False, {"c": True}, ["the program has set itself not ready"])
        runtime.set_health_status(True)
        assert runtime_health(runtime).ready
        runtime.health = None
        await served.drain(0)
        assert runtime_health(runtime) == Health(False, {"c": False}, ["a.b.c: this instance is leaving"])


def test_what_an_engine_remarks() -> None:
    """It is why the process isn't ready, first of all, or a note beside which it serves."""
    remarks = ["waits for its server"]
    starting = Health(False, {}, ["no endpoint is served yet"]).with_remarks(remarks)
    assert starting.reasons == [*remarks, "no endpoint is served yet"]
    serving = Health(True, {"c": True}).with_remarks(remarks)
    assert (serving.reasons, serving.notes) == ((), remarks)
