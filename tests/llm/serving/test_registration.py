"""Models of programs, over a runtime in memory with a real frontend's pool beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.llm.opened_first import with_one
from tests.waiting import until

from dynamo.llm import (
    KvEventPublisher,
    LLMUnaryClient,
    ModelInput,
    ModelType,
    UnaryChatModel,
    WorkerMetricsPublisher,
    ZmqKvEventPublisher,
    ZmqKvEventPublisherConfig,
    card_from_dict,
    fetch_model,
    register_llm,
    register_model,
    unregister_model,
    update_model_taints,
    with_engine_data,
)
from dynamo.llm.model_card import ModelCard
from dynamo.runtime import DistributedRuntime, Endpoint, InvalidArgument, StreamIncomplete

BOTH = ModelType.Chat | ModelType.Completions
REQUEST = {"model": "m", "token_ids": [1, 2, 3]}


async def parrot(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for token in request["token_ids"]:
        yield {"token_ids": [token]}
    yield {"token_ids": [], "finish_reason": "stop"}


@asynccontextmanager
async def runtime() -> AsyncIterator[DistributedRuntime]:
    async with await DistributedRuntime.in_memory() as made:
        yield made


def card_of(runtime: DistributedRuntime, endpoint: Endpoint) -> ModelCard | None:
    """What the record of an endpoint says."""
    (served,) = [entry for entry in runtime.served if entry.path == endpoint.path]
    card = served._registration.instance.card
    return card_from_dict(card) if card else None


async def serve(runtime: DistributedRuntime, endpoint: Endpoint) -> None:
    """In the background, as programs do."""
    task = asyncio.create_task(endpoint.serve_endpoint(parrot))
    await until("it is served", lambda: any(entry.path == endpoint.path for entry in runtime.served) or task.done())


@with_one(runtime)
async def test_before_and_after_serving(runtime: DistributedRuntime) -> None:
    """Both orders give the same record; taken back, the endpoint is served as before."""
    before, after = runtime.endpoint("test.a.generate"), runtime.endpoint("test.b.generate")
    await register_model(ModelInput.Tokens, BOTH, before, "", "m", user_data={"x": 1})
    await serve(runtime, before)
    await serve(runtime, after)
    assert card_of(runtime, after) is None
    await register_model(ModelInput.Tokens, BOTH, after, "", "m", user_data={"x": 1})
    assert card_of(runtime, before) == card_of(runtime, after)
    card = card_of(runtime, before)
    assert card is not None
    assert (card.name, card.user_data, card.model_input) == ("m", {"x": 1}, "tokens")
    client = await after.client()
    assert [item async for item in client.random(REQUEST, annotated=False)][-1]["finish_reason"] == "stop"
    await unregister_model(after)
    await unregister_model(after)
    assert card_of(runtime, after) is None
    assert len([item async for item in client.random(REQUEST, annotated=False)]) == 4


@with_one(runtime)
async def test_again_it_adds_and_replaces(runtime: DistributedRuntime) -> None:
    """0.x registers a chat and a completions model one after the other; another name needs another endpoint."""
    endpoint = runtime.endpoint("test.a.generate")
    await serve(runtime, endpoint)
    await register_llm(ModelType.Chat, endpoint, "", "m", migration_limit=1)
    await register_llm(ModelType.Completion, endpoint, "", "m", migration_limit=2)
    card = card_of(runtime, endpoint)
    assert card is not None
    assert (card.model_types, card.migration_limit, card.tokenizer) == (["chat", "completions"], 2, "none")
    with pytest.raises(InvalidArgument, match="registered as 'm': serve 'other' at an endpoint of its own"):
        await register_llm(ModelType.Chat, endpoint, "", "other")
    assert card_of(runtime, endpoint) == card
    await unregister_model(endpoint)
    await register_llm(ModelType.Chat, endpoint, "", "other")
    with pytest.raises(InvalidArgument, match="no adapters"):
        await unregister_model(endpoint, lora_name="x")


@with_one(runtime)
async def test_names_and_files_of_a_folder(runtime: DistributedRuntime, checkout: Path) -> None:
    """Tokens: the folder's name, and its files by digest from this process. Text: a name, and nothing is opened."""
    endpoint, text = runtime.endpoint("test.a.generate"), runtime.endpoint("test.t.generate")
    await register_model(ModelInput.Tokens, BOTH, endpoint, checkout, kv_cache_block_size=32, context_length=32)
    await serve(runtime, endpoint)
    card = card_of(runtime, endpoint)
    assert card is not None
    assert (card.name, card.context_length, card.kv_cache_block_size) == ("tiny-chat", 32, 32)
    await runtime.caller.listen("test")
    (key,) = [endpoint._registration.key for endpoint in runtime.served]
    ask = {"digest": card.files["tokenizer"].digest, "offset": 0}
    answer = await runtime.caller.control(key, "file", ask, timeout=5)
    assert answer["size"] == (checkout / "tokenizer.json").stat().st_size
    with pytest.raises(InvalidArgument, match="a context length of 65 is more than the 64 tokens"):
        await register_model(ModelInput.Tokens, BOTH, endpoint, checkout, context_length=65)
    with pytest.raises(InvalidArgument, match="there is no model at"):
        await register_model(ModelInput.Tokens, BOTH, endpoint, "/nowhere/at/all")
    await serve(runtime, text)
    for path, name in (("hf://Some/Model", "Some/Model"), ("/nowhere/at-all", "at-all")):
        await register_model(ModelInput.Text, BOTH, text, path)
        described = card_of(runtime, text)
        assert described is not None
        assert (described.name, described.files) == (name, {})
        await unregister_model(text)
    with pytest.raises(InvalidArgument, match="needs a model_name"):
        await register_model(ModelInput.Text, BOTH, text, "")


@with_one(runtime)
async def test_a_template_of_ones_own(runtime: DistributedRuntime, checkout: Path, tmp_path: Path) -> None:
    """`custom_template_path` replaces the model's."""
    endpoint, template = runtime.endpoint("test.a.generate"), tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}")
    await register_model(ModelInput.Tokens, BOTH, endpoint, checkout, custom_template_path=template)
    await serve(runtime, endpoint)
    card = card_of(runtime, endpoint)
    assert card is not None
    assert card.files["chat_template"].name == "own.jinja"


@with_one(runtime)
async def test_publishers_of_a_component(runtime: DistributedRuntime) -> None:
    """0.x gave its component: the endpoint of the model is meant, or the one that is served, or `generate`."""
    component = runtime.namespace("test").component("backend")
    endpoint = component.endpoint("odd-name")
    await register_model(ModelInput.Tokens, BOTH, endpoint, "", "m")
    await serve(runtime, endpoint)
    events = KvEventPublisher(component, runtime.id, 4)
    events.publish_stored(1, [1, 2, 3, 4], [4], [11], 0, None)
    events.publish_stored(event_id=2, token_ids=[5, 6, 7, 8], num_block_tokens=[4], block_hashes=[12], parent_hash=11)
    events.publish_stored([9, 9, 9, 9], [4], [13], parent_hash=12)
    events.publish_removed(3, [13])
    events.publish_removed([12])
    with pytest.raises(TypeError, match="takes block_hashes"):
        events.publish_removed(3)  # type: ignore[call-overload]
    metrics = WorkerMetricsPublisher()
    await metrics.create_endpoint(component, [("model", "m")])
    metrics.publish(0, kv_used_blocks=7)
    (served,) = runtime.served
    await until("the figures are there", lambda: served.figures.get("used_kv_blocks") == 7)
    assert served.figures["kv_events"] is True
    config = ZmqKvEventPublisherConfig(worker_id=runtime.id, kv_block_size=4, zmq_endpoint="tcp://127.0.0.1:1")
    ZmqKvEventPublisher(component, config).shutdown()


@with_one(runtime)
async def test_a_model_that_answers_at_once(runtime: DistributedRuntime) -> None:
    """1.x's unary forms: the handler returns the answer, the client gets it whole."""

    async def handler(request: dict[str, Any], *, context: Any) -> dict[str, Any]:
        table = {"token_ids": request["token_ids"], "finish_reason": "stop"}
        return with_engine_data(table, {"id": context.id()})

    task = asyncio.create_task(UnaryChatModel("", "unary").serve(runtime, handler))
    client = await LLMUnaryClient.connect(runtime, "unary.app.generate")
    done = await client.complete(REQUEST)
    assert (done["token_ids"], done["finish_reason"], list(done["engine_data"])) == ([1, 2, 3], "stop", ["id"])
    with pytest.raises(ValueError, match="id already"):
        with_engine_data(done, {"id": 1})
    with pytest.raises(ValueError, match="asks for one answer"):
        await client.complete({**REQUEST, "sampling_options": {"n": 2}})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await serve(runtime, endpoint := runtime.endpoint("test.other.generate"))
    unary = LLMUnaryClient(await endpoint.client())
    assert (await unary.complete({"token_ids": [5, 6]}))["token_ids"] == [5, 6]


@with_one(runtime)
async def test_an_answer_without_an_end(runtime: DistributedRuntime) -> None:
    """Is none."""

    async def endless(request: Any) -> AsyncIterator[Any]:
        yield {"token_ids": [1]}

    endpoint = runtime.endpoint("test.a.generate")
    task = asyncio.create_task(endpoint.serve_endpoint(endless))
    with pytest.raises(StreamIncomplete, match="without a finish_reason"):
        await (await LLMUnaryClient.connect(runtime, "test.a.generate")).complete(REQUEST)
    task.cancel()


@with_one(runtime)
async def test_taints_and_local_paths(runtime: DistributedRuntime, checkout: Path) -> None:
    """No router reads taints; `fetch_model` of what is here is its path."""
    with pytest.raises(InvalidArgument, match="no router here reads taints"):
        await update_model_taints(runtime.endpoint("a.b.c"), {"gpu"})
    await update_model_taints(runtime.endpoint("a.b.c"), set())
    assert await fetch_model(str(checkout)) == str(checkout)
    with pytest.raises(InvalidArgument, match="there is no model at"):
        await fetch_model("/nowhere/at/all")
