"""The contract of engines that make vectors, over all that run here, and llama.cpp's vectors by hand."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.worker.chain_model import BOS, WIDTH, ids, write_checkout, write_gguf
from tests.worker.engine_rigs import SGLANG

from dynamo.llm import open_model
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.processing.embeddings import EmbeddingRequest, dimensions_of, normalised, numbers_of
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engine import EngineFacts
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.llamacpp.embeddings import vectors
from dynamo.worker.engines.mocker.vectors import made_up
from dynamo.worker.settings import WorkerSettings

LLAMA: Final = {"n_parallel": 4, "n_threads": 1, "embedding": True, "pooling": "mean", "is_matryoshka": True}


SGLANG_VECTORS: Final = {
    **json.loads(SGLANG), "is-embedding": True, "json-model-override-args": {"is_matryoshka": True},
}  # fmt: skip


class Kind(NamedTuple):
    """An engine as the suite starts it."""

    arguments: dict[str, Any]
    dimensions: int
    source: Callable[[Path], Path] | None = None
    """Writes its model into a folder; None: the built-in one."""
    longest: int = 200
    """Tokens that it takes in an input, where its context has 200."""
    apart: bool = False
    """It lives in an environment of its own: only where it is named."""


EVERY: Final = {
    "echo_core": Kind({"embedding_dim": 48}, 48),
    "mocker": Kind({"embedding_dim": 32, "speedup_ratio": 100, "max_model_len": 256, "max_num_seqs": 4}, 32),
    "llamacpp": Kind(LLAMA, WIDTH, write_gguf),
    "sglang": Kind(SGLANG_VECTORS, WIDTH, write_checkout, longest=199, apart=True),
}
NAMED: Final = os.environ.get("DYN_CONTRACT_ENGINES", "").split(",")
KINDS: Final = {name: kind for name, kind in EVERY.items() if name in NAMED or (NAMED == [""] and not kind.apart)}


class Recorder:
    """A sink that remembers everything and fails the test on a second vector or end."""

    def __init__(self) -> None:
        self.vectors: dict[int, bytes] = {}
        self.ends: list[Exception | None] = []
        self.changed = asyncio.Event()

    def push(self, index: int, vector: bytes) -> None:
        assert not self.ends, "a vector after the end"
        assert index not in self.vectors, "an input has two vectors"
        self.vectors[index] = vector
        self.changed.set()

    def finish(self) -> None:
        self.ends.append(None)
        self.changed.set()

    def fail(self, error: Exception) -> None:
        self.ends.append(error)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.vectors) < count and not self.ends:
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> list[bytes]:
        """The vectors in the order of the inputs; raises what it failed with."""
        await self.until(1 << 60)
        assert len(self.ends) == 1
        if self.ends[0] is not None:
            raise self.ends[0]
        return [self.vectors[index] for index in range(len(self.vectors))]


class Rig:
    """A started engine."""

    def __init__(self, engine: str, folder: Path, arguments: dict[str, Any]) -> None:
        source = KINDS[engine].source
        path = None if source is None else source(folder)
        model = open_model(None if path is None else str(path), cache=FileCache(folder / "cache"), context_length=200)
        settings = WorkerSettings(engine=engine, engine_args=json.dumps(arguments), context_length=200)
        self.engine: Any = create_engine(settings, model)

    async def start(self) -> None:
        self.facts: EngineFacts = await self.engine.start()

    def embed(self, *inputs: list[int], dimensions: int | None = None) -> tuple[Recorder, Callable[[], None]]:
        sink = Recorder()
        request = EmbeddingRequest(model="m", token_ids=[*inputs], dimensions=dimensions)
        return sink, self.engine.embed(request, sink)


Body = Callable[[Rig], Awaitable[None]]
Run = Callable[[Body], None]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def run(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs a coroutine function with a started engine."""
    name = next(name for name, entry in KINDS.items() if entry is kind)
    return lambda body: started(Rig(name, tmp_path, kind.arguments), body)


def started(rig: Rig, body: Body) -> None:
    async def main() -> None:
        await rig.start()
        try:
            await body(rig)
        finally:
            await rig.engine.stop()

    asyncio.run(main())


def test_each_input_gets_a_vector_of_length_one(run: Run, kind: Kind) -> None:
    """Of the dimensions that the facts promise; alike for alike inputs only."""

    async def body(rig: Rig) -> None:
        assert rig.facts.embedding_dim == kind.dimensions
        inputs = [ids("abc"), ids("x"), ids("abc"), *(ids("d" * n) + ids("e") for n in range(1, 12))]
        vectors = await rig.embed(*inputs)[0].end()
        assert [dimensions_of(entry) for entry in vectors] == [kind.dimensions] * len(inputs)
        for item in vectors:
            assert math.hypot(*numbers_of(item)) == pytest.approx(1, abs=1e-5)
        assert numbers_of(vectors[0]) == pytest.approx(numbers_of(vectors[2]), abs=1e-5)
        assert math.dist(numbers_of(vectors[0]), numbers_of(vectors[1])) > 0.1
        again = await rig.embed(inputs[1])[0].end()
        assert numbers_of(again[0]) == pytest.approx(numbers_of(vectors[1]), abs=1e-5)

    run(body)


def test_many_requests_at_once(run: Run) -> None:
    """Each gets its own inputs' vectors."""

    async def body(rig: Rig) -> None:
        letters = "abcdefghijklmnop"
        alone = {letter: (await rig.embed(ids(letter))[0].end())[0] for letter in letters}
        sinks = [rig.embed(ids(letter), ids("z"), ids(letter))[0] for letter in letters]
        for entry, sink in zip(letters, sinks, strict=True):
            first, _, third = await sink.end()
            assert numbers_of(first) == pytest.approx(numbers_of(alone[entry]), abs=1e-5)
            assert numbers_of(third) == pytest.approx(numbers_of(alone[entry]), abs=1e-5)

    run(body)


def test_dimensions_cut_and_never_add(run: Run, kind: Kind) -> None:
    """The first numbers with length 1 again; more than there are is refused before any vector."""

    async def body(rig: Rig) -> None:
        whole = numbers_of((await rig.embed(ids("abc"))[0].end())[0])
        (cut,) = await rig.embed(ids("abc"), dimensions=16)[0].end()
        head = whole[:16]
        assert numbers_of(cut) == pytest.approx(normalised(head), abs=1e-5)
        assert dimensions_of(cut) == 16
        with pytest.raises(InvalidArgument, match="dimensions"):
            await rig.embed(ids("abc"), dimensions=kind.dimensions + 1)[0].end()

    run(body)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([], "no input"), ([[5], []], "0 tokens"), ([[5] * 201], "201 tokens: this engine takes 1 to"),
        ([[-1]], "no token id"), ([[2**31]], "no token id"),
    ],
)  # fmt: skip
def test_what_can_t_be_asked_is_refused(run: Run, kind: Kind, inputs: list[list[int]], said: str) -> None:
    """With `InvalidArgument`; the next request is answered, as long as it says that an input may be."""

    async def body(rig: Rig) -> None:
        with pytest.raises(InvalidArgument, match=said):
            await rig.embed(*inputs)[0].end()
        assert rig.facts.context_length in (kind.longest, None)
        assert len(await rig.embed([5] * kind.longest, [6])[0].end()) == 2

    run(body)


def test_an_abort_frees_the_engine(run: Run) -> None:
    """No vector comes afterwards, what was waiting is dropped, and the engine is idle soon."""

    async def body(rig: Rig) -> None:
        sink, abort = rig.embed(*[[5] * 150] * 500)
        await sink.until(1)
        abort()
        abort()
        count = len(sink.vectors)
        assert len(await rig.embed(ids("a"))[0].end()) == 1
        async with asyncio.timeout(30):
            while rig.engine.load().running or rig.engine.load().waiting:  # noqa: ASYNC110 - an engine says nothing
                await asyncio.sleep(0.005)
        assert (len(sink.vectors), sink.ends) == (count, [])
        assert count < 500

    run(body)


def test_a_stop_ends_what_runs(run: Run) -> None:
    """With `EngineShutdown`, once."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.embed(*[[5] * 150] * 500)
        await sink.until(1)
        await rig.engine.stop()
        with pytest.raises(EngineShutdown):
            await sink.end()

    run(body)


def test_llamacpp_s_vectors_are_the_model_s(tmp_path: Path) -> None:
    """With this model a token is a direction of its own, so the mean of an input's tokens counts them: all of them,
    also where inputs of different lengths are computed together."""

    async def body(rig: Rig) -> None:
        texts = ["abc", "aab", "好 好x", "z" * 30 + "a", "q", "xy" * 90, "m" * 17]
        vectors = await rig.embed(*([BOS, *ids(text)] for text in texts))[0].end()
        for text, vector in zip(texts, vectors, strict=True):
            counts = Counter([BOS, *ids(text)])
            expected = normalised([float(counts[token]) for token in range(WIDTH)])
            assert numbers_of(vector) == pytest.approx(expected, abs=1e-4)
        again = await rig.embed([BOS, *ids("abc")])[0].end()
        direct = rig.engine._server.handle_embeddings({"input": [[BOS, *ids("abc")]]})["data"][0]["embedding"]
        assert numbers_of(again[0]) == pytest.approx(direct, abs=1e-6)

    started(Rig("llamacpp", tmp_path, LLAMA), body)


def test_llamacpp_takes_the_last_token_or_the_first(tmp_path: Path) -> None:
    """`last` and `cls` are that token's direction; inputs for `last` may be longer than a step."""
    for pooling, at in (("last", -1), ("cls", 0)):
        arguments = {**LLAMA, "pooling": pooling, "n_batch": 64}

        async def body(rig: Rig, at: int = at) -> None:
            given = [BOS, *ids("bc" * 80)]
            (vector,) = await rig.embed(given)[0].end()
            numbers = numbers_of(vector)
            assert numbers[given[at]] == pytest.approx(1, abs=1e-4)

        (tmp_path / pooling).mkdir()
        started(Rig("llamacpp", tmp_path / pooling, arguments), body)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pooling": "mean"}, "'pooling' needs 'embedding'"), ({"is_matryoshka": True}, "'is_matryoshka' needs"),
        ({"embedding": True, "pooling": "rank"}, "must be one of mean, cls, last"),
        ({"embedding": True, "pooling": 5}, "must be a text"), ({"embeding": True}, "did you mean 'embedding'"),
        ({"embedding": True}, "doesn't say how an input's tokens become one vector"),
    ],
)  # fmt: skip
def test_llamacpp_s_arguments_that_can_t_be_meant(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    """One sentence each, at the start."""

    async def body(rig: Rig) -> None:
        """It has not been started."""

    with pytest.raises(InvalidArgument, match=said):
        started(Rig("llamacpp", tmp_path, {"n_parallel": 1, "n_threads": 1, **arguments}), body)


def test_llamacpp_refuses_to_cut_what_is_not_made_for_it(tmp_path: Path) -> None:
    """Unless the worker says that the model is; its own number is always fine."""

    async def body(rig: Rig) -> None:
        with pytest.raises(InvalidArgument, match="not made to be cut"):
            rig.embed(ids("a"), dimensions=8)
        assert len(await rig.embed(ids("a"), dimensions=WIDTH)[0].end()) == 1

    started(Rig("llamacpp", tmp_path, {**LLAMA, "is_matryoshka": False}), body)


def test_calls_are_as_large_as_there_are_slots() -> None:
    """So a client that leaves is noticed between them; numbers go on from call to call."""
    asked: list[int] = []

    def ask(body: bytes) -> bytes:
        count = len(json.loads(body)["input"])
        asked.append(count)
        return json.dumps({"data": [{"index": n, "embedding": "AACAPw=="} for n in reversed(range(count))]}).encode()

    made = list(vectors(ask, [[1]] * 7, 3, None))
    assert (asked, [index for index, _ in made]) == ([3, 3, 1], [*range(7)])


@pytest.mark.parametrize("engine", ["echo_core", "mocker"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", 10**6])
def test_dimensions_that_are_none(tmp_path: Path, engine: str, wrong: Any) -> None:
    """The argument is named."""
    with pytest.raises(InvalidArgument, match="embedding_dim"):
        Rig(engine, tmp_path, {"embedding_dim": wrong})


def test_made_up_vectors_stay_as_they_are() -> None:
    """Whatever the machine and the release: somebody may have kept them."""
    expected = [-0.7383652, 0.0101992, 0.5740863, 0.3537480]
    assert numbers_of(made_up([1, 2, 3], 4)) == pytest.approx(expected, abs=1e-6)
