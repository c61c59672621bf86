"""TensorRT-LLM's adapter around an engine that is played: ends, aborts, and a stop that takes no longer than it may.

The package comes from NVIDIA's index only and imports nothing without a GPU, so nothing here compares the played
engine with it: it has the calls that the sources of its LLM API name.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from tests.waiting import until
from tests.worker.chain_model import write_checkout
from tests.worker.engine_rigs import Recorder
from tests.worker.engines.trtllm.trtllm_outputs import Completion, Logprob

from dynamo.llm import LocalModel, open_model
from dynamo.llm.protocols import EOS, LENGTH, LOG_PROBS, PreprocessedRequest
from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.trtllm import engine as trtllm
from dynamo.worker.settings import WorkerSettings


class Result:
    """As its `RequestOutput`: itself what it is iterated over. Counts upwards from the prompt's last token."""

    def __init__(self, inputs: list[int], sampling: dict[str, Any], engine: Llm) -> None:
        self._inputs, self._sampling, self._engine = inputs, sampling, engine
        self.outputs: list[Completion] = []
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    async def __aiter__(self) -> AsyncIterator[Result]:
        token, most = self._inputs[-1], self._sampling["max_tokens"]
        for step in range(1, most + 1):
            if step > 1:
                await self._engine.gate.wait()
            if self._engine.breaks is not None:
                raise self._engine.breaks
            token += 1
            reason = "cancelled" if self.aborted else "length" if step == most else None
            reason = "stop" if token == self._sampling["end_id"] else reason
            results = [{token: Logprob(-0.5)}] if "logprobs" in self._sampling else []
            self.outputs = [Completion([token], reason, None, results)]
            yield self
            if reason is not None:
                return


class Llm:
    """As `tensorrt_llm.LLM`."""

    made: Llm
    refuses: Exception | None = None

    def __init__(self, **arguments: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.arguments, self.results = arguments, list[Result]()
        self._executor: object = object()
        self.breaks: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.shuts_down, self.went = threading.Event(), False
        self.shuts_down.set()
        type(self).made = self

    def generate_async(self, inputs: list[int], sampling_params: dict[str, Any], streaming: bool) -> Result:
        if sampling_params["max_tokens"] > 1000:
            raise ValueError("max_tokens is too large")
        assert streaming
        self.results.append(Result(inputs, sampling_params, self))
        return self.results[-1]

    def shutdown(self) -> None:
        self.shuts_down.wait(30)
        self.went = True


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> type[Llm]:
    """The package as the adapter finds it, and an engine class of the test's own."""
    engine = type("Llm", (Llm,), {})
    module = ModuleType("tensorrt_llm")
    module.LLM, module.SamplingParams = engine, dict  # type: ignore[attr-defined]  # a module of ours
    monkeypatch.setitem(sys.modules, "tensorrt_llm", module)
    return engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LocalModel:
    return open_model(str(write_checkout(tmp_path_factory.mktemp("trtllm"))))


Body = Callable[[trtllm.TrtLlm, Llm], Awaitable[None]]


def run(body: Body, model: LocalModel, package: type[Llm]) -> None:
    async def main() -> None:
        engine = trtllm.TrtLlm(WorkerSettings(engine="trtllm", context_length=2000), model)
        async with asyncio.timeout(30):
            facts = await engine.start()
            assert (facts.context_length, facts.kv_cache_block_size) == (2000, 32)
            try:
                await body(engine, package.made)
            finally:
                await engine.stop()

    asyncio.run(main())


def asked(max_tokens: int = 4, **more: Any) -> PreprocessedRequest:
    stop = {"max_tokens": max_tokens, **more.pop("stop", {})}
    return msgspec.convert({"model": "m", "token_ids": [1, 2, 3], "stop_conditions": stop, **more}, PreprocessedRequest)


def test_requests_stream_to_their_ends(model: LocalModel, package: type[Llm]) -> None:
    """In order, one end each, and log probabilities with their tokens."""

    async def body(engine: trtllm.TrtLlm, played: Llm) -> None:
        long, short, recorder = Recorder(), Recorder(), Recorder()
        engine.submit(asked(), long)
        engine.submit(asked(eos_token_ids=[5]), short)
        engine.submit(asked(1, output_options={"logprobs": 0}), recorder)
        assert engine.load().running == 3
        assert [await sink.end() for sink in (long, short, recorder)] == [LENGTH, EOS, LENGTH]
        assert (long.produced, short.produced) == ([4, 5, 6, 7], [4, 5])
        assert [(extras or {}).get(LOG_PROBS) for extras in recorder.extras] == [[-0.5], None]
        assert engine.load().running == 0

    run(body, model, package)


def test_an_abort_reaches_the_engine(model: LocalModel, package: type[Llm]) -> None:
    """Once, and its sink hears nothing more."""

    async def body(engine: trtllm.TrtLlm, played: Llm) -> None:
        played.gate.clear()
        sink = Recorder()
        abort = engine.submit(asked(), sink)
        await sink.until(1)
        abort()
        assert played.results[0].aborted
        played.results[0].aborted = False
        abort()
        assert not played.results[0].aborted
        played.gate.set()
        other = Recorder()
        engine.submit(asked(), other)
        assert await other.end() == LENGTH
        assert (sink.produced, sink.ends) == ([4], [])

    run(body, model, package)


def test_what_fails(model: LocalModel, package: type[Llm]) -> None:
    """What its checks refuse is the caller's mistake, what breaks in its stream the request's; without its executor
    it is dead."""

    async def body(engine: trtllm.TrtLlm, played: Llm) -> None:
        with pytest.raises(InvalidArgument, match="TensorRT-LLM: max_tokens is too large"):
            engine.submit(asked(1500), Recorder())
        with pytest.raises(InvalidArgument, match="token_ids has 100000, which is no token id"):
            engine.submit(asked(token_ids=[1, 100_000]), Recorder())
        played.breaks = RuntimeError("CUDA error")
        sink = Recorder()
        engine.submit(asked(), sink)
        error = await sink.end()
        assert (type(error), str(error)) == (EngineError, "TensorRT-LLM: RuntimeError: CUDA error")
        assert not engine._death.done()
        played._executor = None  # as its shutdown leaves it
        engine.submit(asked(), Recorder())
        assert str(await engine.failed()) == "CUDA error"

    run(body, model, package)


def test_a_stop_ends_what_runs(model: LocalModel, package: type[Llm]) -> None:
    """Retryably; the engine is told, nothing is taken any more, and stopping again is nothing."""

    async def body(engine: trtllm.TrtLlm, played: Llm) -> None:
        played.gate.clear()
        sink = Recorder()
        engine.submit(asked(), sink)
        await sink.until(1)
        await engine.stop()
        assert isinstance(await sink.end(), EngineShutdown)
        assert played.results[0].aborted
        assert played.went
        with pytest.raises(EngineShutdown):
            engine.submit(asked(), Recorder())

    run(body, model, package)


def test_a_shutdown_that_hangs_is_not_waited_for(
    model: LocalModel, package: type[Llm], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its threads and MPI can: the worker says so and leaves, and its thread holds up no exit."""
    monkeypatch.setattr(trtllm, "_STOP_SECONDS", 0.1)

    async def body(engine: trtllm.TrtLlm, played: Llm) -> None:
        played.shuts_down.clear()
        await engine.stop()
        (thread,) = (entry for entry in threading.enumerate() if entry.name == "trtllm-shutdown")
        assert thread.daemon
        assert "did not end within 0.1 s" in caplog.text
        played.shuts_down.set()
        await until("it ends", lambda: played.went)
        await asyncio.to_thread(thread.join, 10)

    run(body, model, package)


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (ValueError("max_batch_sise: no such field"), "TensorRT-LLM refuses its arguments: max_batch_sise"),
        (RuntimeError("no CUDA device"), "TensorRT-LLM can't start: RuntimeError: no CUDA device"),
    ],
)
async def test_a_start_that_fails_says_why(model: LocalModel, package: type[Llm], raised: Exception, says: str) -> None:
    """In one sentence; stopping what never started is nothing."""
    package.refuses = raised
    engine = trtllm.TrtLlm(WorkerSettings(engine="trtllm"), model)
    with pytest.raises(InvalidArgument, match=says):
        await engine.start()
    await engine.stop()


async def test_without_the_package(model: LocalModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """How to have it."""
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)

    with pytest.raises(InvalidArgument, match=r"run pip install .*NVIDIA's package index"):
        await trtllm.TrtLlm(WorkerSettings(engine="trtllm"), model).start()
