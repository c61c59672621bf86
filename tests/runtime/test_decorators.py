"""Programs in NVIDIA Dynamo's style."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest

from dynamo.runtime import Context, DistributedRuntime, InvalidArgument, dynamo_endpoint, dynamo_worker


class Ask(pydantic.BaseModel):
    text: str


class Say(pydantic.BaseModel):
    word: str


@dynamo_endpoint(Ask, Say)
async def generate(request: Ask) -> AsyncIterator[Say]:
    for word in request.text.split():
        yield Say(word=word)


@dynamo_endpoint(Ask, Say)
async def with_context(request: Ask, context: Context) -> AsyncIterator[str]:
    yield context.id() + request.text


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "mem")


async def ask(runtime: DistributedRuntime, handler: Any, request: Any, context: Context | None = None) -> list[Any]:
    endpoint = runtime.endpoint("a.b.c")
    serving = asyncio.create_task(endpoint.serve_endpoint(handler))
    client = await endpoint.client()
    await client.wait_for_instances()
    try:
        return [item async for item in client.generate(request, annotated=False, context=context)]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("request_", [{"text": "a b"}, '{"text": "a b"}'], ids=["dict", "text"])
def test_a_request_becomes_a_model(request_: Any) -> None:
    """Dictionaries and JSON texts are parsed; items that are models arrive as dictionaries."""

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> Any:
        return await ask(runtime, generate, request_)

    assert asyncio.run(worker()) == [{"word": "a"}, {"word": "b"}]


def test_a_handler_with_a_context() -> None:
    """The context passes by the model."""

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> Any:
        return await ask(runtime, with_context, {"text": "!"}, Context("me"))

    assert asyncio.run(worker()) == ["me!"]


@pytest.mark.parametrize("request_", [{"txt": "a"}, "{", 7], ids=["field", "json", "type"])
def test_a_request_that_does_not_fit(request_: Any) -> None:
    """Is the caller's mistake."""

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> None:
        with pytest.raises(InvalidArgument, match="Invalid request"):
            await ask(runtime, generate, request_)

    asyncio.run(worker())


def test_sigterm_leaves_in_order() -> None:
    """SIGTERM ends `serve_endpoint`, and the runtime is closed afterwards."""
    made: list[DistributedRuntime] = []

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> str:
        made.append(runtime)
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        await runtime.endpoint("a.b.c").serve_endpoint(generate)
        return "served"

    assert asyncio.run(worker()) == "served"
    assert made[0].served == []


def test_forms_of_the_decorator() -> None:
    """What says nothing is taken; what may mean two things, or has no parentheses, is refused with what to write."""

    async def work(runtime: DistributedRuntime, word: str) -> str:
        return word

    forms = [dynamo_worker(), dynamo_worker(False), dynamo_worker(static=False), dynamo_worker(static=True)]
    with pytest.warns(DeprecationWarning, match="enable_nats changes nothing"):
        forms.append(dynamo_worker(enable_nats=False))
    assert [asyncio.run(form(work)("done")) for form in forms] == ["done"] * 5
    with pytest.raises(InvalidArgument, match="name it"):
        dynamo_worker(True)
    with pytest.raises(InvalidArgument, match="parentheses"):
        dynamo_worker(work)  # type: ignore[arg-type]


def test_outside_of_the_main_thread() -> None:
    """A loop of another thread can't listen for signals, and runs all the same."""

    @dynamo_worker()
    async def worker(runtime: DistributedRuntime) -> str:
        return "done"

    with concurrent.futures.ThreadPoolExecutor() as pool:
        assert pool.submit(asyncio.run, worker()).result(30) == "done"
