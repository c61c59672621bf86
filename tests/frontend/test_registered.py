"""What a card asks of the frontend: its routes, its way of choosing workers, and statuses of its program's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from tests.waiting import eventually

from dynamo.llm import HttpError, ModelInput, ModelType, RouterConfig, RouterMode, register_model
from dynamo.runtime import DistributedRuntime

HELLO = [{"role": "user", "content": "hello"}]
BOTH = ModelType.Chat | ModelType.Completions


async def echo(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"token_ids": request["token_ids"], "finish_reason": "stop"}


async def words(request: dict[str, Any]) -> AsyncIterator[Any]:
    said = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
    if said == "before":
        raise HttpError(429, "first pay")
    yield "one "
    if said == "after":
        raise HttpError(429, "then pay")
    yield "two"


def register(
    site: Any, generate: Any, takes: ModelInput, types: ModelType, path: str, name: str, *,
    at: str = "test.backend.generate", router_config: RouterConfig | None = None,
) -> None:  # fmt: skip
    """A program of the site's world; returns when the frontend serves it."""

    async def start() -> None:
        runtime = await DistributedRuntime.in_memory(site.world)
        site.workers.append(runtime)
        endpoint = runtime.endpoint(at)
        await register_model(takes, types, endpoint, path, name, router_config=router_config)
        await endpoint.start(runtime.offers.handler(endpoint.path, generate))

    site.run(start())
    runtime = site.workers[-1]
    eventually("the frontend routes to the program", lambda: runtime.id in site.instances())


@pytest.mark.parametrize(("types", "served"), [(ModelType.Chat, "chat"), (ModelType.Completions, "completions")])
def test_a_model_answers_its_own_routes(site: Any, types: ModelType, served: str) -> None:
    """The other one is 404, and says which it answers."""
    register(site, words, ModelInput.Text, types, "", "m")
    chat = site.post("/v1/chat/completions", {"model": "m", "messages": HELLO})
    completion = site.post("/v1/completions", {"model": "m", "prompt": "hello"})
    good, bad = (chat, completion) if served == "chat" else (completion, chat)
    assert (good.status_code, bad.status_code) == (200, 404)
    error = bad.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert f"it answers POST /v1/{'chat/' * (served == 'chat')}completions." in error["message"]


@pytest.mark.parametrize("mode", [RouterMode.KV, RouterMode.LeastLoaded, RouterMode.Random])
def test_a_model_says_how_its_workers_are_chosen(make_site: Any, mode: RouterMode) -> None:
    """Whatever the frontend's own mode is; another model keeps to that."""
    site = make_site(router_mode="power-of-two")
    register(site, echo, ModelInput.Tokens, BOTH, "", "m", router_config=RouterConfig(mode))
    register(site, echo, ModelInput.Tokens, BOTH, "", "other", at="test.other.generate")
    modes = {}
    for name in ("m", "other"):
        body = {"model": name, "prompt": "hello", "nvext": {"extra_fields": ["routing"]}}
        modes[name] = site.post("/v1/completions", body).json()["nvext"]["routing"]
    assert modes["m"]["mode"] == mode.value
    assert modes["other"]["mode"] == "power-of-two"
    assert ("cost" in modes["m"]) == (mode is RouterMode.KV)


@pytest.mark.parametrize("stream", [False, True])
def test_a_status_of_the_program(site: Any, stream: bool) -> None:
    """Before its first output it is the response's, afterwards an event of the stream."""
    register(site, words, ModelInput.Text, BOTH, "", "m")
    body = {"model": "m", "prompt": "before", "stream": stream}
    answer = site.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["message"]) == (429, "first pay")
    assert answer.json()["error"]["code"] == "rejected_by_engine"
    answer = site.post("/v1/completions", {**body, "prompt": "after"})
    assert answer.status_code == (200 if stream else 429)
    assert "then pay" in answer.text


async def lengths(request: dict[str, Any]) -> AsyncIterator[Any]:
    """How long each input is."""
    yield {"embeddings": [[float(len(ids))] for ids in request["token_ids"]]}


async def letters(request: dict[str, Any]) -> AsyncIterator[Any]:
    """The same of texts, in OpenAI's form."""
    results = [
        {"object": "embedding", "index": n, "embedding": [float(len(t))]} for n, t in enumerate(request["input"])
    ]
    yield {
        "object": "list",
        "data": results,
        "model": request["model"],
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
    }


@pytest.mark.parametrize(
    ("generate", "takes", "tokens"), [(lengths, ModelInput.Tokens, 6), (letters, ModelInput.Text, 9)]
)
def test_a_program_makes_vectors(site: Any, generate: Any, takes: ModelInput, tokens: int) -> None:
    """OpenAI's SDK reads them; a chat is told what the model answers."""
    register(site, generate, takes, ModelType.Embedding, "", "v")
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key="any") as client:
        answer = client.embeddings.create(model="v", input=["a", "bc", "def"])
        assert [item.embedding for item in answer.data] == [[1.0], [2.0], [3.0]]
        assert answer.usage.prompt_tokens == tokens
    refused = site.post("/v1/chat/completions", {"model": "v", "messages": HELLO})
    assert (refused.status_code, "POST /v1/embeddings" in refused.text) == (404, True)
