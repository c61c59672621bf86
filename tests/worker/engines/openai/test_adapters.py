"""Adapters that a server lists: each a model of its own beside the one that it adapts, as long as it is listed."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from tests.waiting import until
from tests.worker.engines.openai.scripted_server import ScriptedServer, answer

from dynamo.llm import open_model
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engine import Adapting
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.openai.dialects import DIALECTS
from dynamo.worker.engines.openai.discovery import adapters_of
from dynamo.worker.instance.adapters import adapter_path
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

PATH: Final = EndpointPath("tests", "backend", "generate")


def listed(*adapters: str) -> tuple[int, bytes]:
    """What vLLM answers at `/v1/models`."""
    models = [{"id": "m", "parent": None}, *({"id": name, "parent": "m"} for name in adapters)]
    return 200, json.dumps({"data": models}).encode()


def cards(runtime: DistributedRuntime) -> dict[str, EndpointPath]:
    """The models of a worker, and where each is."""
    return {(served._registration.instance.card or {})["name"]: served.path for served in runtime.served}


async def asked(runtime: DistributedRuntime, path: EndpointPath) -> list[Any]:
    """What a request to a worker's endpoint gets."""
    items: list[Any] = []
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    await runtime.caller.listen(path.namespace)
    runtime.caller.open(
        InstanceKey(path, runtime.id), TextRequest(model="x", kind="completions", body={"prompt": "x"}),
        context=Context(), on_item=lambda data, last: items.append(data), on_end=end.set_result,
    )  # fmt: skip
    assert await end is None
    return items


async def test_each_is_a_model_while_it_is_listed() -> None:
    """Its requests name it at the server; one that is loaded later comes, and all go while the server is away."""
    async with ScriptedServer() as server, await DistributedRuntime.in_memory() as runtime:
        server.replies["/v1/models"] = listed("sql")
        arguments = json.dumps({"url": server.url, "api": "openai", "check_secs": 1, "models_secs": 1})
        settings = WorkerSettings(engine="openai", engine_args=arguments, endpoint=str(PATH))
        model = open_model(None, name="mine")
        serving = await serve_engine(runtime, create_engine(settings, model), model, settings)
        try:
            await until("it is served", lambda: set(cards(runtime)) == {"mine", "sql"})
            assert await asked(runtime, cards(runtime)["sql"])
            assert server.bodies[-1]["model"] == "sql"
            assert await asked(runtime, PATH)
            assert server.bodies[-1]["model"] == "m"
            server.replies["/v1/models"] = listed("poet", "sql")
            await until("the new one is served", lambda: set(cards(runtime)) == {"mine", "sql", "poet"})
            server.replies["/health"] = (503, b"")
            await until("they are gone", lambda: set(cards(runtime)) == {"mine"})
            server.replies |= {"/health": (200, b""), "/v1/models": listed("poet")}
            await until("those that are listed are back", lambda: set(cards(runtime)) == {"mine", "poet"})
            server.replies["/v1/completions"] = (200, answer(1))
            assert await asked(runtime, cards(runtime)["poet"])
        finally:
            await serving.stop(1.0)
        assert cards(runtime) == {}


async def test_those_found_before_anybody_listens_are_told() -> None:
    """A registration may take longer than the first look at the server, whose adapters are served all the same."""
    async with ScriptedServer() as server:
        server.replies["/v1/models"] = listed("sql")
        arguments = json.dumps({"url": server.url, "api": "openai", "check_secs": 1})
        settings = WorkerSettings(engine="openai", engine_args=arguments, endpoint=str(PATH))
        engine = create_engine(settings, open_model(None, name="mine"))
        assert isinstance(engine, Adapting)
        await engine.start()
        try:
            await until("it has looked twice", lambda: server.asked.count("/health") > 1)
            told: list[list[str]] = []
            engine.on_adapters(lambda names: told.append(list(names)))
            assert told == [["sql"]]
        finally:
            await engine.stop()


def test_lists_of_any_form_are_read() -> None:
    """What adapts another model, or isn't what it should be, is none of ours."""
    odd: list[Any] = [
        5,
        {"parent": "m"},
        {"id": 7, "parent": "m"},
        {"id": "m", "parent": "m"},
        {"id": "", "parent": "m"},
    ]
    assert adapters_of(
        [*odd, {"id": "a", "parent": "m"}, {"id": "b", "parent": "n"}, {"id": "a", "parent": "m"}], "m"
    ) == ("a",)


def test_endpoints_are_told_apart() -> None:
    """Names that have the same letters, or none, get endpoints of their own."""
    names = ["a/b", "a-b", "好", "x" * 900, "x" * 901]
    paths = {adapter_path(PATH, name).endpoint for name in names}
    assert len(paths) == len(names)
    assert max(map(len, paths)) < 80


def test_sglang_is_told_by_a_field_of_its_own() -> None:
    """Its route for token ids has no model's name."""
    assert DIALECTS["sglang"].adapter_field == "lora_path"
    call = DIALECTS["vllm"].call(PreprocessedRequest(model="x", token_ids=[1]), "sql", 10)
    assert (call.body["model"], DIALECTS["vllm"].adapter_field) == ("sql", "")
