"""Prefill and decode mockers: one answer from two engines, how long that takes, and that nothing stays kept."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from dynamo.llm import open_model
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    DISAGGREGATED_PARAMS,
    PrefillResult,
    PreprocessedRequest,
    SamplingOptions,
    StopConditions,
)
from dynamo.runtime import DistributedRuntime, MemoryWorld
from dynamo.runtime.context import Context
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.worker.engines.mock.handover import PARAMS
from dynamo.worker.engines.mocker import Mocker
from dynamo.worker.serve import serve_engine
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


class Pair:
    """A prefill engine and one that goes on; what the second has taken, the first hears of."""

    def __init__(self, prefill: dict[str, Any], decode: dict[str, Any]) -> None:
        model = open_model(None, name="m")
        self.prefill = Mocker(settings("prefill", **prefill), model)
        self.decode = Mocker(settings("decode", **decode), model)
        self.taken: list[tuple[str, str]] = []
        self.prefill.hand_over(lambda: "here", lambda address, handle: None)
        self.decode.hand_over(lambda: "there", self._taken)

    def _taken(self, address: str, handle: str) -> None:
        self.taken.append((address, handle))
        self.prefill.taken(handle)

    @property
    def kept(self) -> int:
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


def request(tokens: list[int], wanted: int, **sampling: Any) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m", token_ids=tokens, stop_conditions=StopConditions(max_tokens=wanted, ignore_eos=True),
        sampling_options=SamplingOptions(**sampling),
    )  # fmt: skip


def play(case: Any, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None) -> None:
    async def main() -> None:
        pair = Pair(prefill or {}, decode or {})
        facts = [await engine.start() for engine in (pair.prefill, pair.decode)]
        assert [one.role for one in facts] == ["prefill", "decode"]
        assert [one.kv_events for one in facts] == [True, False]
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
        # 40 tokens of 1,000 bytes at 100 KB/s are 400 ms, at ten times the speed 40
        assert params == {
            PARAMS: {
                "remote_engine_id": "here", "remote_request_id": "1", "remote_dp_rank": 0, "num_tokens": 40,
                "cached_tokens": 0, "transfer_ms": 400.0,
            }
        }  # fmt: skip
        assert (len(computed.tokens), computed.reason, pair.kept) == (1, "length", 1)
        assert pair.prefill.load().used_kv_blocks == 10
        sink, _ = pair.go_on(params, seed=3)
        assert pair.decode.load().waiting == 1
        await asyncio.wait_for(sink.done.wait(), 10)
        assert sink.first - sink.sent >= 0.04
        assert (len(sink.tokens), sink.tokens[0], sink.extras[CACHED_TOKENS]) == (5, computed.tokens[0], 0)
        assert pair.taken == [("here", "1")]
        assert (pair.kept, pair.prefill.load().used_kv_blocks, pair.decode.load().used_kv_blocks) == (0, 0, 0)
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
        assert pair.kept == 1
        await pair.computed([n + 100 for n in PROMPT])  # no room beside the first
        assert time.monotonic() - began >= 0.3
        assert pair.kept == 1
        pair.prefill.taken("2")
        pair.prefill.taken("2")
        assert pair.kept == 0

    play(case, {"num_gpu_blocks": 15, "dynamo": {"handoff_session_timeout_ms": 300}})


def test_who_gives_up_lets_go() -> None:
    """While the prompt is on its way, and while its answer runs; what ended in the prefill engine stays kept."""

    async def case(pair: Pair) -> None:
        sink = Recorder()
        abort = pair.prefill.submit(request(PROMPT, 1), sink)
        await asyncio.wait_for(sink.done.wait(), 10)
        abort()
        assert pair.kept == 1
        for wait in (0.0, 0.1):
            computed = sink if wait == 0.0 else await pair.computed()
            going, leave = pair.go_on(computed.extras[DISAGGREGATED_PARAMS], wanted=60)
            await asyncio.sleep(wait)
            assert bool(going.tokens) is (wait > 0)
            leave()
            leave()
            assert pair.kept == 0
            assert pair.decode.load() == pair.decode.load().__class__()
        assert len(pair.taken) == 2

    play(case)


def test_stopping_fails_what_is_on_its_way() -> None:
    async def case(pair: Pair) -> None:
        computed = await pair.computed()
        sink, _ = pair.go_on(computed.extras[DISAGGREGATED_PARAMS])
        await pair.decode.stop()
        assert isinstance(sink.error, EngineShutdown)

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
    found: list[list[int]] = []

    async def case(pair: Pair) -> None:
        for _ in range(2):
            sink, _ = pair.go_on((await pair.computed(seed=9)).extras[DISAGGREGATED_PARAMS], seed=9)
            await asyncio.wait_for(sink.done.wait(), 10)
            found.append(sink.tokens)
        whole = Recorder()
        pair.decode.submit(request(PROMPT, 5, seed=9), whole)
        await asyncio.wait_for(whole.done.wait(), 10)
        found.append(whole.tokens)

    play(case, {"speedup_ratio": 0, "data_parallel_size": 2}, {"speedup_ratio": 0, "data_parallel_size": 2})
    assert found[0] == found[1] == found[2]


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


def test_workers_tell_each_other() -> None:
    """Served over memory: roles on their cards, the hand-over names the worker that keeps it, and that one lets go."""

    async def main() -> None:
        world = MemoryWorld()
        model = open_model(None, name="m")
        served, runtimes, engines = [], [], []
        for role in ("prefill", "decode"):
            flags = settings(role, speedup_ratio=0)
            flags = WorkerSettings(**{**flags.__dict__, "endpoint": f"dyn://t.{role}.generate"})
            runtime, engine = await DistributedRuntime.in_memory(world), Mocker(flags, model)
            served.append(await serve_engine(runtime, engine, model, flags))
            runtimes.append(runtime)
            engines.append(engine)
        caller = await DistributedRuntime.in_memory(world)
        prefill, decode = (InstanceKey(EndpointPath("t", role, "generate"), one.id)
                           for role, one in zip(("prefill", "decode"), runtimes, strict=True))  # fmt: skip
        found = Cards()
        (await caller.registry.watch("t")).listen(found)
        async with asyncio.timeout(10):
            while len(found.cards) < 2:  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.005)
        cards = {key.path.component: card["role"] for key, card in found.cards.items()}
        assert cards == {"prefill": "prefill", "decode": "decode"}
        await caller.caller.listen("t")

        async def ask(key: InstanceKey, made: PreprocessedRequest) -> list[Any]:
            items: list[Any] = []
            done = asyncio.get_running_loop().create_future()
            caller.caller.open(
                key, made, context=Context(), on_item=lambda data, last: items.append(data), on_end=done.set_result
            )
            assert await asyncio.wait_for(done, 10) is None
            return items

        ((_, reason, extras),) = [one for one in await ask(prefill, request(PROMPT, 9)) if isinstance(one, list)][-1:]
        params = extras[DISAGGREGATED_PARAMS]
        assert reason == "length"
        assert params[PARAMS]["remote_engine_id"] == f"t.prefill.generate/{prefill.id:x}"
        assert engines[0].ranks[0].scheduler.held == 1
        made = request(PROMPT, 4)
        made.prefill_result = PrefillResult(disaggregated_params=params)
        await ask(decode, made)
        async with asyncio.timeout(10):
            while engines[0].ranks[0].scheduler.held:  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.005)
        for one in served:
            await one.stop(0)
        for runtime in (*runtimes, caller):
            await runtime.shutdown(0)

    asyncio.run(main())
