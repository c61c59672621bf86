"""`/engine/<route>` of a system server: who may ask, what the callback gets, what becomes of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from tests.runtime.http.test_system_server import health, serve
from tests.waiting import until

from dynamo.runtime import DistributedRuntime
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.http.engine_routes import AT_ONCE, PREFIX, EngineRoutes
from dynamo.runtime.http.system_server import BODY_LIMIT, SystemServer


def run(routes: EngineRoutes, case: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    serve(SystemServer(health(), trees={PREFIX: routes.answer}), case)


async def sleep(body: dict[str, Any]) -> dict[str, Any]:
    return {"slept": body.get("level", 1)}


def test_a_callback_gets_the_body_and_answers_with_json() -> None:
    """Async or not, with a body or without, also one that answers nothing."""
    routes = EngineRoutes()
    routes.register("sleep", sleep)
    routes.register("/engine/plain", lambda body: body)
    routes.register("control/nothing", lambda body: None)

    async def case(client: httpx.AsyncClient) -> None:
        assert (await client.post("/engine/sleep", json={"level": 2})).json() == {"slept": 2}
        assert (await client.post("/engine/sleep")).json() == {"slept": 1}
        assert (await client.post("/engine/plain", json={"a": ["b"]})).json() == {"a": ["b"]}
        assert (await client.post("/engine/control/nothing")).json() == {}
        assert (await client.get("/live")).status_code == 200

    assert routes.names == ["control/nothing", "plain", "sleep"]
    run(routes, case)


@pytest.mark.parametrize(
    ("ask", "status", "says"),
    [
        ({"method": "POST", "url": "/engine/wake"}, 404, "engine routes here: refuse, sleep"),
        ({"method": "POST", "url": "/engine/"}, 404, "Route not found"),
        ({"method": "GET", "url": "/engine/sleep"}, 405, "POST only"),
        ({"method": "POST", "url": "/engine/sleep", "content": "{"}, 400, "no JSON"),
        ({"method": "POST", "url": "/engine/sleep", "content": "[]"}, 400, "a JSON object"),
        ({"method": "POST", "url": "/engine/sleep", "content": "[" * 100_000}, 400, "nested too deeply"),
        ({"method": "POST", "url": "/engine/sleep", "headers": {"origin": "http://x"}}, 403, "web pages"),
        ({"method": "POST", "url": "/engine/sleep", "content": b"x" * (BODY_LIMIT + 1)}, 413, "larger than"),
        ({"method": "POST", "url": "/engine/refuse"}, 400, "not asleep"),
    ],
)
def test_what_is_refused(ask: dict[str, Any], status: int, says: str) -> None:
    """With a status, and what would be right."""
    routes = EngineRoutes()
    routes.register("sleep", sleep)

    def refuse(body: dict[str, Any]) -> None:
        raise InvalidArgument("the engine is not asleep")

    routes.register("refuse", refuse)

    async def case(client: httpx.AsyncClient) -> None:
        answer = await client.request(**ask)
        assert answer.status_code == status
        assert says in answer.text

    run(routes, case)


def test_half_a_request_is_none() -> None:
    """Whoever leaves before his body has come has asked nothing: an empty body would be an order."""
    calls: list[dict[str, Any]] = []
    routes = EngineRoutes()
    routes.register("sleep", calls.append)

    async def case(client: httpx.AsyncClient) -> None:
        head = b"POST /engine/sleep HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n"
        for sent in (head, head + b'{"level": 2}'):
            _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
            writer.write(sent)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        for level in (3, 4):
            await client.post("/engine/sleep", json={"level": level})

    run(routes, case)
    assert calls == [{"level": 3}, {"level": 4}]


def test_failures_are_answers(caplog: pytest.LogCaptureFixture) -> None:
    """An exception, and a result that is no JSON; the log has the cause, the server goes on."""
    routes = EngineRoutes()
    routes.register("break", lambda body: 1 / 0)
    routes.register("odd", lambda body: {1, 2})

    async def case(client: httpx.AsyncClient) -> None:
        for name in ("break", "odd"):
            answer = await client.post(f"/engine/{name}")
            assert (answer.status_code, answer.json()["error"]) == (500, "Engine route failed")
        assert (await client.get("/health")).status_code == 200

    run(routes, case)
    assert "engine route break failed" in caplog.text


def test_calls_are_bounded() -> None:
    """So many at once, the next one is told; afterwards there is room again."""
    routes = EngineRoutes()
    go_on = asyncio.Event()
    waiting = 0

    async def wait(body: dict[str, Any]) -> None:
        nonlocal waiting
        waiting += 1
        await go_on.wait()

    routes.register("wait", wait)

    async def case(client: httpx.AsyncClient) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client.post("/engine/wait"))
            await until("all of them wait", lambda: waiting == AT_ONCE)
            assert (await client.post("/engine/wait")).status_code == 503
            go_on.set()
        assert (await client.post("/engine/wait")).status_code == 200

    run(routes, case)


async def test_names() -> None:
    """A runtime takes NVIDIA Dynamo's call; names that can't stand in a path are refused."""
    async with await DistributedRuntime.in_memory() as runtime:
        runtime.register_engine_route("sleep", sleep)
        assert runtime.engine_routes.names == ["sleep"]
        for name in ("", "a b", "?", "/"):
            with pytest.raises(InvalidArgument):
                runtime.register_engine_route(name, sleep)


@pytest.mark.parametrize(
    ("address", "headers", "open_trees", "status"),
    [
        ("127.0.0.1", {}, False, 200), ("127.0.0.1", {"x-envoy-attempt-count": "1"}, False, 403),
        ("127.0.0.1", {"x-forwarded-proto": "http"}, False, 403), ("127.0.0.6", {}, False, 403),
        ("127.0.0.6", {}, True, 200), ("127.0.0.1", {"via": "1.1 p"}, True, 200),
    ],
)  # fmt: skip
def test_only_this_machine_changes_an_engine(
    address: str, headers: dict[str, str], open_trees: bool, status: int
) -> None:
    """Any pod reaches the port for its figures: what changes something comes from loopback, unless told otherwise."""
    routes = EngineRoutes()
    called: list[dict[str, Any]] = []
    routes.register("sleep", called.append)

    async def main() -> None:
        server = SystemServer(health(), trees={PREFIX: routes.answer}, open_trees=open_trees)
        url = f"http://127.0.0.1:{await server.start()}"
        transport = httpx.AsyncHTTPTransport(local_address=address)
        try:
            async with httpx.AsyncClient(base_url=url, transport=transport, headers=headers) as client:
                for method in ("POST", "PUT", "DELETE"):
                    answer = await client.request(method, "/engine/sleep", json={})
                    assert answer.status_code == (status if method == "POST" or status == 403 else 405)
                assert (await client.get("/live")).status_code == 200
        finally:
            await server.stop()

    asyncio.run(main())
    assert len(called) == (status == 200)
