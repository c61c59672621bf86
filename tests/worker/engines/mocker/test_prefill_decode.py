"""Prefill and decode mockers: one answer from two engines, how long that takes, and that nothing stays kept."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.waiting import until

from dynamo.llm import open_model
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    DISAGGREGATED_PARAMS,
    BootstrapInfo,
    PrefillResult,
    PreprocessedRequest,
    SamplingOptions,
    StopConditions,
)
from dynamo.runtime import DistributedRuntime, MemoryWorld
from dynamo.runtime.context import Context
from dynamo.runtime.errors import CannotConnect, DynamoException, EngineShutdown, InvalidArgument, StreamIncomplete
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.worker.engine import Abort, Fetched
from dynamo.worker.engines.mocker import kv_transfers
from dynamo.worker.engines.mocker.engine import Mocker
from dynamo.worker.engines.mocker.kv_transfer_state import PARAMS
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

PROMPT = list(range(40))
BLOCK = 4


class Recorder:
    """What one request brought."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.extras: dict[str, Any] = {}
        self.reason = ""
        self.error: Exception | None = None
        self.done = asyncio.Event()
        self.first = self.sent = time.monotonic()

    def push(self, produced: Any, extras: dict[str, Any] | None = None) -> None:
        if not self.tokens:
            self.first = time.monotonic()
        self.tokens += produced
        self.extras |= extras or {}

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.reason = reason
        self.extras |= extras or {}
        self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()


def settings(role: str, **arguments: Any) -> WorkerSettings:
    given = {
        "disaggregation_mode": role, "speedup_ratio": 10, "num_gpu_blocks": 64, "kv_bytes_per_token": 1000,
        "kv_transfer_bandwidth": 1e-4, **arguments,
    }  # fmt: skip
    return WorkerSettings(engine="mocker", model_name="m", kv_cache_block_size=BLOCK, engine_args=json.dumps(given))


class Way:
    """One transfer, as the streams between two workers are it."""

    def __init__(self, fetched: Fetched) -> None:
        self.send = fetched.begins
        self._fetched = fetched

    def finish(self) -> None:
        self._fetched.arrived()

    def fail(self, error: BaseException) -> None:
        assert isinstance(error, DynamoException)
        self._fetched.lost(error)


class Pair:
    """A prefill engine and one that goes on."""

    def __init__(self, prefill: dict[str, Any], decode: dict[str, Any]) -> None:
        model = open_model(None, name="m")
        self.prefill = Mocker(settings("prefill", **prefill), model)
        self.decode = Mocker(settings("decode", **decode), model)
        self.asked: list[tuple[str, str]] = []
        self.prefill.hand_over(lambda: "here", self._fetch)
        self.decode.hand_over(lambda: "there", self._fetch)

    def _fetch(self, address: str, name: str, fetched: Fetched) -> Abort:
        self.asked.append((address, name))
        return self.prefill.give(name, Way(fetched))

    @property
    def held(self) -> int:
        return sum(rank.scheduler.held for rank in self.prefill.ranks)

    async def computed(self, tokens: list[int] = PROMPT, **sampling: Any) -> Recorder:
        sink = Recorder()
        self.prefill.submit(request(tokens, 7, **sampling), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        return sink

    def go_on(self, params: dict[str, Any], tokens: list[int] = PROMPT, wanted: int = 5, **more: Any) -> Any:
        sink = Recorder()
        made = request(tokens, wanted, **more)
        made.prefill_result = PrefillResult(disaggregated_params=params)
        return sink, self.decode.submit(made, sink)

    def meet(self, engine: Mocker, room: int, tokens: list[int] = PROMPT, wanted: int = 5, **more: Any) -> Any:
        """Send one half of a request whose other half is sent at the same time."""
        sink = Recorder()
        made = request(tokens, wanted, **more)
        made.bootstrap_info = BootstrapInfo(bootstrap_host="here", bootstrap_room=room)
        return sink, engine.submit(made, sink)


def request(tokens: list[int], wanted: int, **sampling: Any) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m", token_ids=tokens, stop_conditions=StopConditions(max_tokens=wanted, ignore_eos=True),
        sampling_options=SamplingOptions(**sampling),
    )  # fmt: skip


def play(case: Any, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> None:
    async def main() -> None:
        pair = Pair(prefill or {}, decode or {})
        facts = [await engine.start() for engine in (pair.prefill, pair.decode)]
        assert [fact.role for fact in facts] == ["prefill", "decode"]
        assert [fact.kv_events for fact in facts] == [True, True]
        try:
            await case(pair)
        finally:
            await pair.prefill.stop()
            await pair.decode.stop()

    asyncio.run(main())


def test_a_prompt_is_computed_there_and_decoded_here() -> None:
    """One token with the hand-over; then the answer that one engine alone would give, after the transfer's time."""

    async def case(pair: Pair) -> None:
        computed = await pair.computed(seed=3)
        params = computed.extras[DISAGGREGATED_PARAMS]
        assert params == {
            PARAMS: {
                "remote_engine_id": "here", "remote_request_id": "1", "remote_dp_rank": 0, "num_tokens": 40
            }
        }  # fmt: skip
        assert (len(computed.tokens), computed.reason, pair.held) == (1, "length", 1)
        assert pair.prefill.load().used_kv_blocks == 10
        sink, _ = pair.go_on(params, seed=3)
        assert pair.decode.load().waiting == 1
        await asyncio.wait_for(sink.done.wait(), 10)
        # 40 tokens of 1,000 bytes at 100 KB/s are 400 ms, at ten times the speed 40
        assert sink.first - sink.sent >= 0.04
        assert (len(sink.tokens), sink.tokens[0], sink.extras[CACHED_TOKENS]) == (5, computed.tokens[0], 0)
        assert pair.asked == [("here", "1")]
        assert (pair.held, pair.prefill.load().used_kv_blocks, pair.decode.load().used_kv_blocks) == (0, 0, 0)
        again = await pair.computed(seed=3)
        sink, _ = pair.go_on(again.extras[DISAGGREGATED_PARAMS], seed=3)
        await asyncio.wait_for(sink.done.wait(), 10)
        assert sink.extras[CACHED_TOKENS] == 39

    play(case)


def test_what_nobody_takes_ends_by_itself() -> None:
    """A full cache of kept prompts lets the next one wait, not fail; after the deadline it goes on."""

    async def case(pair: Pair) -> None:
        began = time.monotonic()
        await pair.computed()
        assert pair.held == 1
        second = await pair.computed([n + 100 for n in PROMPT])  # no room beside the first
        assert time.monotonic() - began >= 0.3
        assert pair.held == 1
        sink, _ = pair.go_on(second.extras[DISAGGREGATED_PARAMS])
        await asyncio.wait_for(sink.done.wait(), 10)
        assert pair.held == 0
        with pytest.raises(StreamIncomplete, match="not any more"):
            pair.go_on(second.extras[DISAGGREGATED_PARAMS])

    play(case, {"num_gpu_blocks": 15, "dynamo": {"handoff_session_timeout_ms": 300}})


def test_who_gives_up_lets_go() -> None:
    """While the prompt is on its way, and while its answer runs; what ended in the prefill engine stays kept."""

    async def case(pair: Pair) -> None:
        sink = Recorder()
        abort = pair.prefill.submit(request(PROMPT, 1), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        abort()
        assert pair.held == 1
        for begun in (False, True):
            computed = await pair.computed() if begun else sink
            going, leave = pair.go_on(computed.extras[DISAGGREGATED_PARAMS], wanted=60)
            await until("it has begun", lambda going=going, begun=begun: not begun or going.tokens)  # type: ignore[misc]
            leave()
            leave()
            assert pair.held == 0
            assert pair.decode.load() == pair.decode.load().__class__()

    play(case)


def test_stopping_fails_what_is_on_its_way() -> None:
    """On the side that waits, and on the side that gives."""

    async def case(pair: Pair) -> None:
        for engine, error in ((pair.prefill, CannotConnect), (pair.decode, EngineShutdown)):
            computed = await pair.computed()
            sink, _ = pair.go_on(computed.extras[DISAGGREGATED_PARAMS])
            await engine.stop()
            assert isinstance(sink.error, error)
            await pair.prefill.start()

    play(case)


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_both_halves_may_be_sent_at_once(first: str) -> None:
    """Decode waits for the computation and for the transfer, whichever half comes first; then nothing is kept."""

    async def case(pair: Pair) -> None:
        order = ("prefill", "decode") if first == "prefill" else ("decode", "prefill")
        sinks = {role: pair.meet(getattr(pair, role), 7, seed=3)[0] for role in order}
        for sink in sinks.values():
            await asyncio.wait_for(sink.done.wait(), 10)
        prefill, decode = sinks["prefill"], sinks["decode"]
        assert decode.first - prefill.first >= 0.04
        assert (len(prefill.tokens), len(decode.tokens), decode.tokens[0]) == (1, 5, prefill.tokens[0])
        assert (pair.asked, pair.held) == ([("here", "room 7")], 0)

    play(case)


def test_a_half_without_the_other() -> None:
    """A prompt that is given up fails who waits for it; one that another prompt was computed for is refused."""

    async def case(pair: Pair) -> None:
        sink, _ = pair.meet(pair.decode, 1)
        _, abort = pair.meet(pair.prefill, 1)
        abort()
        assert isinstance(sink.error, CannotConnect)
        assert "its request ended" in str(sink.error)
        assert pair.decode.load() == pair.decode.load().__class__()
        pair.meet(pair.prefill, 2)
        sink, _ = pair.meet(pair.decode, 2, PROMPT[1:])
        await asyncio.wait_for(sink.done.wait(), 10)
        assert "40 tokens were computed, and the prompt has 39" in str(sink.error)
        assert pair.held == 0

    play(case)


def test_who_comes_to_a_room_where_nobody_is_waits_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_transfers, "PATIENCE", 0.05)

    async def case(pair: Pair) -> None:
        sink, _ = pair.meet(pair.decode, 1)
        await asyncio.wait_for(sink.done.wait(), 10)
        assert isinstance(sink.error, CannotConnect)

    play(case)


def test_a_decode_engine_works_alone_too() -> None:
    """Without a hand-over it computes; a hand-over of another prompt is refused."""

    async def case(pair: Pair) -> None:
        sink = Recorder()
        pair.decode.submit(request(PROMPT, 3), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        assert len(sink.tokens) == 3
        computed = await pair.computed()
        with pytest.raises(InvalidArgument, match="40 were computed, and the prompt has 39"):
            pair.go_on(computed.extras[DISAGGREGATED_PARAMS], PROMPT[1:])

    play(case)


def test_the_same_seed_gives_the_same_answer_whole_or_in_parts() -> None:
    """A decode engine's tokens are those of an engine that does everything."""
    results: list[list[int]] = []

    async def case(pair: Pair) -> None:
        for _ in range(2):
            sink, _ = pair.go_on((await pair.computed(seed=9)).extras[DISAGGREGATED_PARAMS], seed=9)
            await asyncio.wait_for(sink.done.wait(), 10)
            results.append(sink.tokens)
        whole = Recorder()
        pair.decode.submit(request(PROMPT, 5, seed=9), whole)
        await asyncio.wait_for(whole.done.wait(), 10)
        results.append(whole.tokens)

    play(case, {"speedup_ratio": 0, "data_parallel_size": 2}, {"speedup_ratio": 0, "data_parallel_size": 2})
    assert results[0] == results[1] == results[2]


def test_the_flag_and_the_arguments_must_agree() -> None:
    """`--role prefill` is enough; one that says otherwise is refused."""
    model = open_model(None, name="m")
    assert Mocker(WorkerSettings(engine="mocker", role="prefill"), model).role == "prefill"
    with pytest.raises(InvalidArgument, match="--role prefill, and the mocker's arguments say decode"):
        Mocker(WorkerSettings(engine="mocker", role="prefill", engine_args='{"is_decode": true}'), model)


# -- workers


class Cards:
    """An `InstanceListener` that keeps cards."""

    def __init__(self) -> None:
        self.cards: dict[InstanceKey, Any] = {}

    def joined(self, instance: Any) -> None:
        self.cards[instance.key] = instance.card

    changed = joined

    def left(self, key: InstanceKey) -> None:
        """Nobody does."""


@asynccontextmanager
async def served(world: MemoryWorld, role: str) -> AsyncIterator[tuple[InstanceKey, Mocker]]:
    """A worker of that role, and the key of its instance."""
    model = open_model(None, name="m")
    flags = WorkerSettings(**{**settings(role, speedup_ratio=0).__dict__, "endpoint": f"dyn://t.{role}.generate"})
    runtime, engine = await DistributedRuntime.in_memory(world), Mocker(flags, model)
    serving = await serve_engine(runtime, engine, model, flags)
    yield InstanceKey(EndpointPath("t", role, "generate"), runtime.id), engine
    await serving.stop(0)
    await runtime.shutdown(0)


async def answer(caller: DistributedRuntime, key: InstanceKey, made: PreprocessedRequest) -> list[Any]:
    """What a worker sends, to its end."""
    items: list[Any] = []
    done = asyncio.get_running_loop().create_future()
    caller.caller.open(
        key, made, context=Context(), on_item=lambda data, last: items.append(data), on_end=done.set_result
    )
    assert await asyncio.wait_for(done, 10) is None
    return items


async def test_workers_tell_each_other() -> None:
    """Served over memory: roles on their cards, the hand-over names the worker that keeps it, and that one lets go."""

    async def case(caller: DistributedRuntime, prefill: InstanceKey, keeps: Mocker, decode: InstanceKey) -> None:
        registered = Cards()
        (await caller.registry.watch("t")).listen(registered)
        await until("both are known", lambda: len(registered.cards) == 2)
        cards = {key.path.component: card["role"] for key, card in registered.cards.items()}
        assert cards == {"prefill": "prefill", "decode": "decode"}
        await caller.caller.listen("t")
        items = [item for item in await answer(caller, prefill, request(PROMPT, 9)) if isinstance(item, list)]
        _, reason, extras = items[-1]
        params = extras[DISAGGREGATED_PARAMS]
        assert reason == "length"
        assert params[PARAMS]["remote_engine_id"] == f"t.prefill.generate/{prefill.id:x}"
        assert keeps.ranks[0].scheduler.held == 1
        made = request(PROMPT, 4)
        made.prefill_result = PrefillResult(disaggregated_params=params)
        assert len(await answer(caller, decode, made)) >= 4
        assert not keeps.ranks[0].scheduler.held
        met = BootstrapInfo(bootstrap_host=params[PARAMS]["remote_engine_id"], bootstrap_room=5)
        halves = [request(PROMPT, 4), request(PROMPT, 4)]
        for half in halves:
            half.bootstrap_info = met
        both = await asyncio.gather(answer(caller, decode, halves[0]), answer(caller, prefill, halves[1]))
        assert len(both[0]) >= 4
        await asyncio.wait_for(keeps.all_taken(), 10)
        assert not keeps.ranks[0].scheduler.held

    world = MemoryWorld()
    caller = await DistributedRuntime.in_memory(world)
    async with served(world, "prefill") as (prefill, keeps), served(world, "decode") as (decode, _):
        await case(caller, prefill, keeps, decode)
    await caller.shutdown(0)
