"""SGLang's adapter around an engine that is played: threads, ends, aborts, and what a start and a death look like."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.waiting import until
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.sglang import played_sglang as played
from tests.worker.test_embedding_engines import Recorder as VectorRecorder

from dynamo.llm import open_model
from dynamo.llm.processing.embeddings import EmbeddingRequest, numbers_of
from dynamo.llm.protocols import CACHED_TOKENS, EOS, LENGTH, LOG_PROBS, STOP, PreprocessedRequest
from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engine import Nodes
from dynamo.worker.engines.sglang import engine as sglang
from dynamo.worker.settings import WorkerSettings

MODULE = "sglang.srt.entrypoints.engine"
SHAPES = "sglang.srt.managers.io_struct"
NODES = Nodes(("127.0.0.1", 29500), ())


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> type[played.Engine]:
    """SGLang as the adapter finds it, and an engine class of the test's own."""
    engine = type("Engine", (played.Engine,), {})
    module = ModuleType(MODULE)
    module.Engine = engine  # type: ignore[attr-defined]  # a module of ours
    monkeypatch.setitem(sys.modules, MODULE, module)
    shapes = ModuleType(SHAPES)
    shapes.EmbeddingReqInput = played.EmbeddingReqInput  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, SHAPES, shapes)
    monkeypatch.setattr(sglang, "read_arguments", lambda words: words)
    monkeypatch.setattr(sglang, "_folder", lambda model: "/model")
    monkeypatch.setenv("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "")
    return engine


def run(body: Callable[[sglang.SgLang], Awaitable[None]], context: int = played.CONTEXT) -> None:
    async def main() -> None:
        settings = WorkerSettings(engine="sglang", engine_args='{"disable_radix_cache": true}')
        engine = sglang.SgLang(settings, open_model(None, name="m"))
        async with asyncio.timeout(30):
            facts = await engine.start()
            assert (facts.context_length, facts.kv_cache_block_size) == (context, played.PAGE)
            assert (facts.total_kv_blocks, facts.max_num_seqs, facts.kv_events) == (10, 8, False)
            try:
                await body(engine)
            finally:
                await engine.stop()
                assert played_engine(engine).shut_down

    asyncio.run(main())


def played_engine(engine: Any) -> played.Engine:
    played_engine: played.Engine = engine._home.engine
    return played_engine


def asked(max_tokens: int = 4, **more: Any) -> PreprocessedRequest:
    stop = {"max_tokens": max_tokens, **more.pop("stop", {})}
    return msgspec.convert({"model": "m", "token_ids": [1, 2, 3], "stop_conditions": stop, **more}, PreprocessedRequest)


def test_a_request_streams_to_its_length() -> None:
    """In order, one end; what is said of the prompt comes with the first tokens."""

    async def body(engine: sglang.SgLang) -> None:
        sinks = [Recorder() for _ in range(20)]
        for sink in sinks:
            engine.submit(asked(), sink)
        assert engine.load().running == 20
        assert [await sink.end() for sink in sinks] == [LENGTH] * 20
        assert all(sink.produced == [4, 5, 6, 7] for sink in sinks)
        assert sinks[0].extras[0] == {CACHED_TOKENS: 2}
        assert engine.load().running == 0

    run(body)


def test_log_probabilities_of_the_last_token_travel_with_it() -> None:
    """A frontend refuses tokens that come without."""

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        engine.submit(asked(2, output_options={"logprobs": 1}), sink)
        assert await sink.end() == LENGTH
        assert [(extras or {}).get(LOG_PROBS) for extras in sink.extras] == [[-0.5], [-0.5], None]

    run(body)


def test_a_floor_is_a_call_of_its_own() -> None:
    """The second one goes on behind what the first produced, and only then an end counts."""

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        engine.submit(asked(6, eos_token_ids=[4, 6], stop={"min_tokens": 2}), sink)
        assert await sink.end() == EOS
        assert sink.produced == [4, 5, 6]
        first, second = played_engine(engine).calls
        assert (first["input_ids"], second["input_ids"]) == ([1, 2, 3], [1, 2, 3, 4, 5])
        assert first["rid"] != second["rid"]

    run(body)


def test_an_end_that_is_ours_ends_the_engines_work() -> None:
    """With `ignore_eos` SGLang doesn't look for stop tokens, and would go on."""

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        engine.submit(asked(50, stop={"stop_token_ids": [6], "ignore_eos": True}), sink)
        assert await sink.end() == STOP
        assert sink.produced == [4, 5, 6]
        await until("it is told", lambda: played_engine(engine).tokenizer_manager.aborted)

    run(body)


def test_an_abort_reaches_the_engine(package: type[played.Engine]) -> None:
    """Its sink hears nothing more, and a second abort is none."""
    package.gate = threading.Event()

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        abort = engine.submit(asked(50), sink)
        await sink.until(1)
        abort()
        await until("it is told", lambda: played_engine(engine).tokenizer_manager.aborted == ["dyn-1-0"])
        abort()
        assert package.gate is not None
        package.gate.set()
        other = Recorder()
        engine.submit(asked(), other)
        assert await other.end() == LENGTH
        assert (sink.produced, sink.ends, engine.load().running) == ([4], [], 0)

    run(body)


def test_what_is_aborted_at_once_is_never_asked() -> None:
    """Before the engine's thread has turned to it."""

    async def body(engine: sglang.SgLang) -> None:
        turning, held = threading.Event(), threading.Event()
        engine._home.loop.call_soon_threadsafe(turning.set)
        engine._home.loop.call_soon_threadsafe(held.wait, 10)
        await until("its thread is busy", turning.is_set)
        sink, other = Recorder(), Recorder()
        engine.submit(asked(), sink)()
        engine.submit(asked(), other)
        held.set()
        assert await other.end() == LENGTH
        assert (sink.produced, sink.ends, len(played_engine(engine).calls)) == ([], [], 1)

    run(body)


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (ValueError("The input is too long"), InvalidArgument, "SGLang: The input is too long"),
        (RuntimeError("no memory"), EngineError, "SGLang: RuntimeError: no memory"),
    ],
)
def test_what_its_call_raises_is_the_requests(
    package: type[played.Engine], raised: Exception, kind: type[Exception], says: str
) -> None:
    """By its kind; the engine goes on."""
    package.refuses = raised

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        engine.submit(asked(), sink)
        error = await sink.end()
        assert (type(error), str(error)) == (kind, says)
        package.refuses = None
        engine.submit(asked(), other := Recorder())
        assert await other.end() == LENGTH

    run(body)


def test_what_can_not_be_asked_is_refused_at_once() -> None:
    """Nothing of it stays, and `max_tokens: 0` is an end."""

    async def body(engine: sglang.SgLang) -> None:
        for request, says in (
            (asked(sampling_options={"guided_decoding": {"json": {}}}), "guided decoding"),
            (asked(token_ids=list(range(played.CONTEXT))), "a prompt of 64 tokens"),
            (asked(token_ids=[1, 1000]), "token_ids has 1000, which is no token id of this model"),
            (asked(token_ids=[-4, 2000]), "token_ids has -4"),
        ):
            with pytest.raises(InvalidArgument, match=says):
                engine.submit(request, Recorder())
        engine.submit(asked(0), nothing := Recorder())
        assert (nothing.ends, engine.load().running) == ([LENGTH], 0)

    run(body)


def test_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each input; what SGLang refuses is the caller's mistake, and ends the request once."""
    monkeypatch.setattr(played.ModelConfig, "is_generation", False)
    monkeypatch.setattr(played.ModelConfig, "is_matryoshka", True)

    async def body(engine: sglang.SgLang) -> None:
        sink = VectorRecorder()
        engine.embed(EmbeddingRequest(model="m", token_ids=[[5] * n for n in range(1, 40)]), sink)
        assert [numbers_of(vector)[0] for vector in await sink.end()] == [float(n) for n in range(1, 40)]
        refused = VectorRecorder()
        engine.embed(EmbeddingRequest(model="m", token_ids=[[5]] * 3, dimensions=8), refused)
        with pytest.raises(InvalidArgument, match="no such dimensions"):
            await refused.end()
        for ids, says in (([[1000]], "no token id"), ([[5] * played.CONTEXT], "this engine takes 1 to 63")):
            with pytest.raises(InvalidArgument, match=says):
                engine.embed(EmbeddingRequest(model="m", token_ids=ids), VectorRecorder())
        assert engine.load().running == 0

    run(body, context=played.CONTEXT - 1)


def test_a_stop_ends_what_runs(package: type[played.Engine]) -> None:
    """Retryably; nothing is taken after it, and stopping again is nothing."""
    package.gate = threading.Event()

    async def body(engine: sglang.SgLang) -> None:
        sink = Recorder()
        engine.submit(asked(50), sink)
        await sink.until(1)
        await engine.stop()
        assert isinstance(await sink.end(), EngineShutdown)
        with pytest.raises(EngineShutdown):
            engine.submit(asked(), Recorder())

    run(body)


def test_a_failed_process_of_its_is_its_death() -> None:
    """They send SIGQUIT, which would end this one without a word."""

    async def body(engine: sglang.SgLang) -> None:
        os.kill(os.getpid(), signal.SIGQUIT)
        assert "a process of SGLang failed" in str(await engine.failed())

    run(body)


async def test_a_start_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, package: type[played.Engine]) -> None:
    """One sentence, and nothing is left to wait for."""

    def fails(self: Any, server_args: Any) -> None:
        raise RuntimeError("no CUDA device")

    monkeypatch.setattr(package, "__init__", fails)

    engine = sglang.SgLang(
        WorkerSettings(engine="sglang", engine_args='{"disable_radix_cache": true}'), open_model(None, name="m")
    )
    with pytest.raises(InvalidArgument, match="SGLang can't start: RuntimeError: no CUDA device"):
        await engine.start()
    await engine.stop()


async def test_a_start_that_is_given_up_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch, package: type[played.Engine]
) -> None:
    """Ctrl-C while the model loads: what has just loaded is shut down, and not served."""
    begun, go = threading.Event(), threading.Event()
    make = package.__init__

    def slow(self: Any, server_args: Any) -> None:
        begun.set()
        assert go.wait(30)
        make(self, server_args)

    monkeypatch.setattr(package, "__init__", slow)

    engine = sglang.SgLang(
        WorkerSettings(engine="sglang", engine_args='{"disable_radix_cache": true}'), open_model(None, name="m")
    )
    async with asyncio.timeout(30):
        starting = asyncio.ensure_future(engine.start())
        await until("it loads", begun.is_set)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        stopping = asyncio.ensure_future(engine.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
    assert package.made.shut_down


async def test_a_follower_ends_with_its_schedulers() -> None:
    """It serves nothing, and says so when they have gone."""
    settings = WorkerSettings(engine="sglang", num_nodes=2, node_rank=1, leader_addr="127.0.0.1:29500")
    node = sglang.SgLangNode(settings, open_model(None, name="m"))
    async with asyncio.timeout(30):
        await node.start(NODES)
        assert os.environ["SGLANG_BLOCK_NONZERO_RANK_CHILDREN"] == "0"
        played_engine(node)._scheduler_init_result.over.set()
        assert "schedulers on this node ended" in str(await node.failed())
        await node.stop()
