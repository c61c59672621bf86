"""One contract, every engine that runs here: the echoes, the mocker, llama.cpp and mistral.rs (`engine_rigs.py`)."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.worker.engine_rigs import (
    GUIDING,
    LIMITED,
    NAMES,
    PROMPT,
    REAL,
    RIGS,
    SCORING,
    TOKENS,
    Recorder,
    Rig,
    alone,
    opened,
)

from dynamo.frontend.generation.migration import rest_of
from dynamo.llm import LocalModel, open_model
from dynamo.llm.protocols import EOS, LENGTH, LOG_PROBS, STOP, TOP_LOGPROBS
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException, EngineShutdown, InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def fast_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "2")


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


@pytest.mark.parametrize("count", [8, 16])
def test_many_at_once_are_as_one_by_one(run: Any, count: int) -> None:
    """Concurrent requests don't disturb each other: each is what it is alone, also where they are more than slots."""

    async def body(rig: Rig) -> None:
        prompts = [f"{PROMPT} {chr(97 + n)}" for n in range(count)]
        sinks = [rig.submit(prompt=p, max_tokens=8)[0] for p in prompts]
        together = [(await s.end(), s.produced) for s in sinks]
        for prompt, (end, produced) in zip(prompts, together, strict=True):
            alone, _ = rig.submit(prompt=prompt, max_tokens=8)
            assert await alone.end() == end
            assert alone.produced == produced

    run(body)


def test_cancel_frees_the_slot(run: Any) -> None:
    """After `abort` nothing arrives, and the engine has no request left within a step."""

    async def body(rig: Rig) -> None:
        sink, abort = rig.submit(rig.endless())
        await sink.until(3)
        abort()
        seen, ends = len(sink.produced), list(sink.ends)  # a server may be done while this process waits for a core
        await rig.idle()
        assert (len(sink.produced), sink.ends) == (seen, ends)
        abort()

    run(body)


def test_cancelled_requests_leave_room(run: Any) -> None:
    """Twice as many as there are slots, all cancelled, some before they began: the next one is served as ever."""

    async def body(rig: Rig) -> None:
        opened = [rig.submit(rig.endless()) for _ in range(16)]
        await opened[0][0].until(1)
        ends = [list(sink.ends) for sink, _ in opened]  # a fast engine may be done with the first ones
        for _, abort in opened:
            abort()
        sink, _ = rig.submit(max_tokens=3)
        assert await sink.end() == LENGTH
        await rig.idle()
        assert [sink.ends for sink, _ in opened] == ends

    run(body)


@pytest.mark.parametrize("name", NAMES)
def test_stop_ends_open_requests(name: str) -> None:
    """Stopping the engine fails what is open with `EngineShutdown`, once.

    They are more than a server's slots: it may be done with some while this process waits for a core, not with all.
    """

    async def body(rig: Rig) -> None:
        sinks = [rig.submit(rig.endless())[0] for _ in range(80)]
        await sinks[0].until(1)
        await rig.engine.stop()
        ends = [await sink.end() for sink in sinks]
        assert [end for end in ends if end != LENGTH and not isinstance(end, EngineShutdown)] == []
        assert isinstance(ends[-1], EngineShutdown)

    alone(name)(body)


@pytest.mark.parametrize("name", NAMES)
async def test_draining_lets_streams_end(name: str) -> None:
    """A worker that leaves ends what is open, whole, and refuses what comes after, as a thing to try elsewhere."""
    rig, path = Rig(name), EndpointPath("tests", "backend", "generate")
    settings = replace(rig.settings, endpoint=str(path))
    async with await DistributedRuntime.in_memory() as runtime:
        serving = await serve_engine(runtime, rig.engine, rig.model, settings)
        await runtime.caller.listen(path.namespace)
        begun = asyncio.Event()
        ends: list[asyncio.Future[DynamoException | None]] = []

        def ask() -> asyncio.Future[DynamoException | None]:
            ends.append(asyncio.get_running_loop().create_future())
            runtime.caller.open(
                InstanceKey(path, runtime.id), rig.request(max_tokens=60), context=Context(),
                on_item=lambda data, last: begun.set(), on_end=ends[-1].set_result,
            )  # fmt: skip
            return ends[-1]

        for _ in range(4):
            ask()
        async with asyncio.timeout(60):
            await begun.wait()
            leaving = asyncio.create_task(serving.stop(60.0))
            while (late := await ask()) is None:
                pass
            await leaving
            assert [await end for end in ends[:4]] == [None] * 4
        assert late.retryable


@only_tokens
def test_answers_go_on_where_another_engine_was_cut(run: Any) -> None:
    """However far it came: the request for the rest, as a frontend makes it, gives exactly the rest and its end."""

    async def body(rig: Rig) -> None:
        whole = rig.request(prompt="1, 2, 3, 4, 5, 6, 7, 8,", max_tokens=14, min_tokens=9)
        whole.stop_conditions.stop_token_ids = rig.tokenizer.encode("d", add_special=False)
        if rig.name == "mocker":
            whole.sampling_options.seed = 3
        sink = Recorder()
        rig.engine.submit(whole, sink)
        end = await sink.end()
        for cut in (1, 4, len(sink.produced) - 3, len(sink.produced) - 1):
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


@pytest.mark.parametrize("run", LIMITED, indirect=True)
def test_over_long_prompts_fail_before_any_output(run: Any) -> None:
    """A prompt that leaves no room is refused as the caller's mistake."""

    async def body(rig: Rig) -> None:
        request = rig.request()
        request.token_ids = [5] * 2_000_000
        with pytest.raises(InvalidArgument, match="tokens"):
            rig.engine.submit(request, Recorder())

    run(body)


CACHING = ("mocker", "llamacpp", "sglang", "vllm", "openai", "openai-vllm", "openai-sglang")


@pytest.mark.parametrize("run", [n for n in CACHING if n in NAMES], indirect=True)
def test_exactly_as_many_tokens_as_asked_for(run: Any) -> None:
    """As many at least as at most: the answer is whole, and ends well."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(max_tokens=6, min_tokens=6)
        assert (await sink.end(), len(sink.produced)) == ("length", 6)

    run(body)


@pytest.mark.parametrize("run", [n for n in CACHING if n in NAMES], indirect=True)
def test_cached_tokens_are_counted(run: Any) -> None:
    """A prompt that was there before is told to be cached, but for its end, and by the last token: who has that may
    hear no more."""

    async def body(rig: Rig) -> None:
        prompt = f"Something that no other test says, {PROMPT * 2}"
        count = len(rig.request(prompt=prompt).token_ids)
        cached = []
        for _ in range(2):
            sink, _ = rig.submit(prompt=prompt, max_tokens=2, ignore_eos=True)
            await sink.end()
            (told,) = [e["cached_tokens"] for e in sink.extras[:-1] if e and "cached_tokens" in e]
            cached.append(told)
        assert cached[0] < count / 2 < cached[1] < count

    run(body)


@pytest.mark.parametrize("run", REAL, indirect=True)
def test_a_cancel_reaches_a_long_prompt(run: Any) -> None:
    """A request that is aborted while its prompt is computed frees its slot within a batch, without output."""

    async def body(rig: Rig) -> None:
        sink = Recorder()
        request = rig.request(max_tokens=4)
        request.token_ids = rig.tokenizer.encode("abc " * 120)
        abort = rig.engine.submit(request, sink)
        async with asyncio.timeout(30):
            while not rig.engine.load().running:  # noqa: ASYNC110 - an engine says nothing of its slots
                await asyncio.sleep(0.005)
            abort()
            await rig.idle()
        assert (sink.produced, sink.ends) == ([], [])

    run(body)


async def refused(rig: Rig, request: Any) -> None:
    """An engine may refuse at once, or in the stream, before any output."""
    sink = Recorder()
    try:
        rig.engine.submit(request, sink)
    except InvalidArgument as error:
        sink.fail(error)
    assert isinstance(await sink.end(), InvalidArgument)
    assert sink.produced == []


@pytest.mark.parametrize("run", REAL, indirect=True)
@pytest.mark.parametrize("ids", [[2, 1 << 30], [2, 1 << 18], [2, -4]])
def test_ids_outside_the_vocabulary_are_refused(run: Any, ids: list[int]) -> None:
    """A token that does not exist is the caller's mistake, and the engine lives on."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=2)
        request.token_ids = ids
        await refused(rig, request)
        assert await rig.submit(max_tokens=1, ignore_eos=True)[0].end() == LENGTH

    run(body)


GUIDED = {
    "json": ({"enum": ["no", "yes"]}, r'"(no|yes)"'),
    "regex": ("[0-9]{3}/[xyz]", r"[0-9]{3}/[xyz]"),
    "choice": (["left", "right"], r"left|right"),
}


@pytest.mark.parametrize("run", GUIDING, indirect=True)
def test_constrained_answers_keep_to_it(run: Any) -> None:
    """Whatever of an engine's own constraints: the whole answer matches, and ends where it must."""

    async def body(rig: Rig) -> None:
        kinds = [kind for kind in GUIDED if kind in rig.facts.guided]
        assert kinds
        for kind in kinds:
            wanted, pattern = GUIDED[kind]
            request = rig.request(max_tokens=20)
            request.eos_token_ids = rig.model.card.eos_token_ids
            request.sampling_options.guided_decoding = {kind: wanted}
            sink, _ = rig.submit(request)
            assert await sink.end() == EOS, kind
            text = rig.tokenizer.decode(sink.produced)
            assert re.fullmatch(pattern, text), (kind, text)

    run(body)


@pytest.mark.parametrize("run", GUIDING, indirect=True)
def test_constrained_answers_go_on_or_are_made_anew(run: Any) -> None:
    """Greedy, the same request has the same answer, which a frontend may compare; engines that say so go on within."""

    async def body(rig: Rig) -> None:
        kind = next(kind for kind in GUIDED if kind in rig.facts.guided)
        whole = rig.request(max_tokens=20)
        whole.eos_token_ids = rig.model.card.eos_token_ids
        whole.sampling_options.guided_decoding = {kind: GUIDED[kind][0]}
        first, _ = rig.submit(whole)
        await first.end()
        again, _ = rig.submit(whole)
        assert (await again.end(), again.produced) == (EOS, first.produced)
        for cut in range(1, len(first.produced) if rig.facts.resumes_guided else 0):
            rest = rest_of(whole, first.produced[:cut])
            assert rest is not None
            sink, _ = rig.submit(rest)
            assert (await sink.end(), first.produced[:cut] + sink.produced) == (EOS, first.produced), cut

    run(body)


@pytest.mark.parametrize("run", GUIDING, indirect=True)
@pytest.mark.parametrize("wrong", [{"json": {"type": "nonsense"}}, {"regex": "[0-9"}, {"grammar": "root :"}])
def test_constraints_that_can_t_be_read_are_refused(run: Any, wrong: dict[str, Any]) -> None:
    """Before any output, as the caller's mistake; the engine lives on."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=20)
        request.sampling_options.guided_decoding = wrong
        await refused(rig, request)
        assert await rig.submit(max_tokens=1, ignore_eos=True)[0].end() == LENGTH

    run(body)


@pytest.mark.parametrize("run", SCORING, indirect=True)
def test_log_probabilities_come_with_their_tokens(run: Any) -> None:
    """Asked for, there is one for each token, with as many alternatives, best first; else there are none."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=6, ignore_eos=True)
        request.output_options.logprobs = 2
        sink, _ = rig.submit(request)
        assert await sink.end() == LENGTH
        results = [extras for extras in sink.extras if extras]
        chosen = [entry for extras in results for entry in extras.get(LOG_PROBS, ())]
        tops = [entry for extras in results for entry in extras.get(TOP_LOGPROBS, ())]
        assert len(chosen) == len(tops) == 6
        assert all(number <= 0 for number in chosen)
        assert [top[0][0] for top in tops] == sink.produced  # greedy: the best is the one
        assert all(len(top) == 2 and top[0][1] >= top[1][1] for top in tops)
        plain, _ = rig.submit(max_tokens=3, ignore_eos=True)
        await plain.end()
        assert not any(extras and LOG_PROBS in extras for extras in plain.extras)

    run(body)


def test_unknown_arguments_are_refused() -> None:
    """No engine swallows an argument that it doesn't know (a user's file gets them in its argv): it refuses to be made,
    or, where only its package knows them, to start."""
    for name in (name for name in NAMES if not RIGS[name].file):
        with pytest.raises(InvalidArgument, match="nonsense"):
            asyncio.run(_made(WorkerSettings(engine=RIGS[name].engine, engine_args='{"nonsense": 1}'), opened(name)[0]))


async def _made(settings: WorkerSettings, model: LocalModel) -> None:
    engine = create_engine(settings, model)
    try:
        await engine.start()
    finally:
        await engine.stop()


def test_engines_are_known_by_name() -> None:
    """A typo is corrected, a missing one lists what there is."""
    model = open_model(None)
    for name, words in {"mokker": "did you mean 'mocker'", "": "choose one of"}.items():
        with pytest.raises(InvalidArgument, match=words):
            create_engine(WorkerSettings(engine=name), model)
