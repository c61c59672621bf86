"""The mocker's data-parallel ranks: a scheduler and a cache each, in one engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dynamo.llm import load_tokenizer, open_model
from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.models import local_model
from dynamo.llm.protocols import CACHED_TOKENS, PreprocessedRequest, RoutingHints, StopConditions
from dynamo.runtime.errors import EngineShutdown, InvalidArgument
from dynamo.worker.engines.mocker.engine import Mocker
from dynamo.worker.settings import WorkerSettings

BLOCK = 4


class Recorder:
    """What one request brought."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.cached = -1
        self.done = asyncio.Event()

    def push(self, produced: Any, extras: dict[str, Any] | None = None) -> None:
        self.tokens += produced
        if extras:
            self.cached = extras[CACHED_TOKENS]

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self.done.set()

    def fail(self, error: Exception) -> None:
        assert isinstance(error, EngineShutdown)
        self.done.set()


class Rig:
    """An engine of several ranks that has started."""

    def __init__(self, ranks: int, **arguments: Any) -> None:
        given = {"data_parallel_size": ranks, "num_gpu_blocks": 64, "speedup_ratio": 0, **arguments}
        settings = WorkerSettings(engine="mocker", kv_cache_block_size=BLOCK, engine_args=json.dumps(given))
        self.engine = Mocker(settings, open_model(None, name="m"))
        self.steps: list[KvStep] = []
        self.engine.on_kv(self.steps.append)

    def send(self, tokens: list[int], rank: int | None = None, wanted: int = 1, **older: Any) -> Recorder:
        sink = Recorder()
        routing = None if rank is None else RoutingHints(dp_rank=rank)
        ends = StopConditions(max_tokens=wanted, ignore_eos=True)
        self.engine.submit(
            PreprocessedRequest(model="m", token_ids=tokens, stop_conditions=ends, routing=routing, **older), sink
        )
        return sink

    async def ask(self, tokens: list[int], rank: int | None = None, **older: Any) -> Recorder:
        sink = self.send(tokens, rank, **older)
        await asyncio.wait_for(sink.done.wait(), 10)
        return sink


def play(case: Any, ranks: int = 3, **arguments: Any) -> None:
    async def main() -> None:
        rig = Rig(ranks, **arguments)
        facts = await rig.engine.start()
        assert facts.data_parallel_size == ranks
        try:
            await case(rig)
        finally:
            await rig.engine.stop()

    asyncio.run(main())


def test_each_rank_has_a_cache_of_its_own() -> None:
    """A prompt is hit on the rank that computed it, and nowhere else; events and names say which that is."""

    async def case(rig: Rig) -> None:
        prompt = list(range(10))
        assert (await rig.ask(prompt, 2)).cached == 0
        assert (await rig.ask(prompt, 2)).cached == 2 * BLOCK
        assert (await rig.ask(prompt, 1)).cached == 0
        assert (await rig.ask(prompt, dp_rank=1)).cached == 2 * BLOCK  # where older callers say it
        names = set(sequence_hashes(block_hashes(prompt, BLOCK)))
        assert [rig.engine.kv_names(rank) for rank in range(3)] == [set(), names, names]
        assert [(step.dp_rank, set(step.stored)) for step in rig.steps] == [(2, names), (1, names)]

    play(case)


def test_without_a_rank_the_least_busy_one_takes_it() -> None:
    """Requests that run side by side are spread evenly, and a long prompt counts more than a short one."""

    async def case(rig: Rig) -> None:
        sinks = [rig.send([n + 1] * 9, wanted=20) for n in range(9)]
        await asyncio.sleep(0.05)  # all are admitted
        assert [rank.scheduler.running for rank in rig.engine.ranks] == [3, 3, 3]
        assert rig.engine.load().running == 9
        assert rig.engine.load().used_kv_blocks == sum(rank.scheduler.pool.used for rank in rig.engine.ranks) > 0
        for sink in sinks:
            await asyncio.wait_for(sink.done.wait(), 20)

    play(case, speedup_ratio=1)


def test_ranks_step_by_themselves() -> None:
    """A long prompt on one rank doesn't hold up the other's tokens."""

    async def case(rig: Rig) -> None:
        slow = rig.send(list(range(200)) * 10, 0)
        quick = await rig.ask([1, 2, 3], 1)
        assert len(quick.tokens) == 1
        assert slow.tokens == []
        await asyncio.wait_for(slow.done.wait(), 20)

    play(case, ranks=2, speedup_ratio=0.2, num_gpu_blocks=1000)


@pytest.mark.parametrize(("ranks", "wanted", "words"), [(2, 2, "has 0 to 1"), (1, 1, "0 only"), (2, -1, "rank -1")])
def test_a_rank_that_does_not_exist_is_refused(ranks: int, wanted: int, words: str) -> None:
    """With a sentence that says which there are."""

    async def case(rig: Rig) -> None:
        with pytest.raises(InvalidArgument, match=words):
            rig.send([1], wanted)

    play(case, ranks)


def test_a_death_of_one_rank_is_the_engines() -> None:
    """`failed` says why."""

    async def case(rig: Rig) -> None:
        def broken() -> None:
            raise RuntimeError("rank 1 is broken")

        rig.engine.ranks[1].scheduler.plan = broken  # type: ignore[assignment]
        sink = rig.send([1], 1)
        assert str(await asyncio.wait_for(rig.engine.failed(), 10)) == "rank 1 is broken"
        await rig.engine.stop()
        assert sink.done.is_set()

    play(case)


async def test_engines_of_one_process_open_its_tokenizer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--num-workers 100` would take a minute, else."""
    opened: list[Any] = []

    def opening(*given: Any) -> Any:
        opened.append(given)
        return load_tokenizer(*given)

    monkeypatch.setattr(local_model, "load_tokenizer", opening)
    model = open_model(None, name="m")
    engines = [Mocker(WorkerSettings(engine="mocker"), model) for _ in range(3)]
    for engine in engines:
        await engine.start()
    for engine in engines:
        await engine.stop()
    assert len(opened) == 1
