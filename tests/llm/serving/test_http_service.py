"""`HttpService` in this process: its models come and go, and it ends with what it was given."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.llm.opened_first import with_one
from tests.waiting import until

from dynamo.llm import HttpAsyncEngine, HttpError, HttpService, PythonAsyncEngine
from dynamo.runtime import DistributedRuntime, InvalidArgument


async def generate(request: dict[str, Any]) -> AsyncIterator[Any]:
    if request.get("prompt") == "no":
        raise HttpError(403, "not that")
    said = request["prompt"] if "prompt" in request else request["messages"][-1]["content"]
    yield {"choices": [{"index": 0, "delta": {"content": said}, "finish_reason": "stop"}]}


@asynccontextmanager
async def service() -> AsyncIterator[HttpService]:
    made = HttpService(0)
    running = made.run()
    await until("it serves", lambda: made.url or running.done(), 30)
    yield made
    made.shutdown()
    await running


async def models(service: HttpService) -> list[str]:
    async with httpx.AsyncClient() as client:
        value = await client.get(f"{service.url}/v1/models")
    return [model["id"] for model in value.json()["data"]]


async def post(service: HttpService, route: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(f"{service.url}/v1/{route}", json=body)


async def soon(what: str, check: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    end = asyncio.get_running_loop().time() + 20
    while not await check():
        assert asyncio.get_running_loop().time() < end, f"not within 20 s: {what}"


async def has(service: HttpService, *names: str) -> None:
    async def check() -> bool:
        return await models(service) == list(names)

    await soon(f"served are {names}", check)


async def answers(service: HttpService, status: int, route: str, **body: Any) -> None:
    async def check() -> bool:
        return (await post(service, route, **body)).status_code == status

    await soon(f"{route} answers {status}", check)


@with_one(service)
async def test_models_come_and_go(service: HttpService) -> None:
    """While it runs; the routes of a model are those that it was added for, and that are on."""
    engine = HttpAsyncEngine(generate, asyncio.get_running_loop())
    service.add_completions_model("m", engine)
    await has(service, "m")
    done = await post(service, "completions", model="m", prompt="hi")
    assert done.json()["choices"][0]["text"] == "hi"
    assert (await post(service, "completions", model="m", prompt="no")).status_code == 403
    message = [{"role": "user", "content": "hi"}]
    assert (await post(service, "chat/completions", model="m", messages=message)).status_code == 404
    service.add_chat_completions_model("m", "checksum", engine)
    assert (service.list_chat_completions_models(), service.list_completions_models()) == (["m"], ["m"])
    await answers(service, 200, "chat/completions", model="m", messages=message)
    service.enable_endpoint("completion", False)
    await answers(service, 404, "completions", model="m", prompt="hi")
    service.remove_completions_model("m")
    service.remove_chat_completions_model("m")
    await has(service)


async def test_mistakes_are_told() -> None:
    """Each with a sentence."""
    service, engine = HttpService(0), PythonAsyncEngine(generate)
    with pytest.raises(InvalidArgument, match="with an HttpAsyncEngine"):
        service.add_completions_model("m", generate)
    with pytest.raises(InvalidArgument, match="is a function, not int"):
        PythonAsyncEngine(5)  # type: ignore[arg-type]
    service.add_completions_model("m", engine)
    with pytest.raises(InvalidArgument, match="served already"):
        service.add_completions_model("m", engine)
    with pytest.raises(InvalidArgument, match="'x' is not served"):
        service.remove_chat_completions_model("x")
    with pytest.raises(InvalidArgument, match="no endpoint 'embedding' to enable"):
        service.enable_endpoint("embedding")


async def test_it_ends_with_its_runtime() -> None:
    """1.x gives the runtime, 0.x a token of it."""
    runtime = await DistributedRuntime.in_memory()
    service = HttpService(0)
    running = service.run(runtime)
    with pytest.raises(InvalidArgument, match="runs already"):
        service.run(runtime)
    await until("it serves", lambda: service.url or running.done(), 30)
    await runtime.shutdown(0)
    await asyncio.wait_for(running, 20)

    class Token:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def cancelled(self) -> None:
            await self.event.wait()

    token = Token()
    running = service.run(token)
    await until("it serves again", lambda: service.url or running.done(), 30)
    token.event.set()
    await asyncio.wait_for(running, 20)
    assert service.url == ""


async def test_a_port_that_is_taken() -> None:
    """Is told by the task."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidArgument, match="another process listens there"),
    ):
        await HttpService(taken.getsockname()[1]).run()


@with_one(service)
async def test_an_engine_of_another_loop(service: HttpService) -> None:
    """Its functions can't be called on this one."""
    other = asyncio.new_event_loop()
    other.close()
    service.add_completions_model("m", HttpAsyncEngine(generate, other))
    await has(service, "m")
    answer = await post(service, "completions", model="m", prompt="x")
    assert (answer.status_code, "another event loop" in answer.text) == (400, True)
