"""`KvRouter`, `KvEventPublisher` and `WorkerMetricsPublisher` as programs use them, over memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from dynamo.llm import (
    ApproxKvIndexer,
    ForwardPassMetrics,
    KvEventPublisher,
    KvIndexer,
    KvPushRouter,
    KvRouter,
    KvRouterConfig,
    KvStats,
    WorkerMetricsPublisher,
    WorkerStats,
    compute_block_hash_for_seq,
)
from dynamo.llm.kv import load, service
from dynamo.llm.kv.hashing import sequence_hashes
from dynamo.llm.kv.index import Rank
from dynamo.llm.protocols import delta, output_dict, read_delta
from dynamo.runtime import Context, DistributedRuntime, InvalidArgument, MemoryWorld, NoInstances, WorkerUnavailable

BLOCK = 4
PATH = "ns.backend.generate"
PROMPT = list(range(16))


async def until(what: str, check: Callable[[], Any], within: float = 10.0) -> None:
    try:
        async with asyncio.timeout(within):
            while not check():  # noqa: ASYNC110 - what is waited for sets no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {what}") from None


class Site:
    """Runtimes that see each other, workers that answer with what they were asked."""

    def __init__(self) -> None:
        self.world = MemoryWorld()
        self.runtimes: list[DistributedRuntime] = []
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.cancelled = 0
        self.failing: dict[int, Exception] = {}

    async def runtime(self) -> DistributedRuntime:
        self.runtimes.append(await DistributedRuntime.in_memory(self.world))
        return self.runtimes[-1]

    async def worker(self, *, dp_ranks: int = 1) -> tuple[DistributedRuntime, list[KvEventPublisher]]:
        runtime = await self.runtime()
        endpoint = runtime.endpoint(PATH)
        publishers = [KvEventPublisher(endpoint, None, BLOCK, dp_rank=rank) for rank in range(dp_ranks)]

        async def generate(request: dict[str, Any], context: Context) -> AsyncIterator[Any]:
            self.asked.append((runtime.id, request))
            if (error := self.failing.get(runtime.id)) is not None:
                raise error
            try:
                yield 7
                if request.get("model") == "slow":
                    await asyncio.sleep(60)
                yield delta([8], "stop", {"cached_tokens": 4})
            except (asyncio.CancelledError, GeneratorExit):
                self.cancelled += 1
                raise

        from dynamo.runtime.generators import from_generator

        await endpoint.start(from_generator(generate))
        return runtime, publishers

    async def router(self, **config: Any) -> KvPushRouter:
        router = KvPushRouter((await self.runtime()).endpoint(PATH), BLOCK, KvRouterConfig(**config))
        await router.ready()
        await until("all workers are known", lambda: len(router._figures) == len(set(self._workers())))
        return router

    def _workers(self) -> list[int]:
        return [runtime.id for runtime in self.runtimes if runtime.served]

    async def close(self) -> None:
        for runtime in self.runtimes:
            await runtime.shutdown(0)


def play(case: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        site = Site()
        try:
            async with asyncio.timeout(60):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())


def store(publisher: KvEventPublisher, tokens: list[int], first: int = 100, parent: int | None = None) -> None:
    count = len(tokens) // BLOCK
    publisher.publish_stored(tokens, [BLOCK] * count, list(range(first, first + count)), parent)


def names(tokens: list[int], **more: Any) -> set[int]:
    return set(sequence_hashes(compute_block_hash_for_seq(tokens, BLOCK, **more)))


def test_a_prompt_goes_where_it_is_cached() -> None:
    """Published by hand, from another thread too; a child by its parent's hash, a removal, a batch."""

    async def case(site: Site) -> None:
        _, (first,) = await site.worker()
        second_runtime, (second,) = await site.worker()
        router = await site.router()
        await until("both are followed", lambda: router.counts.counters["model_kv_snapshots_total"] == 2)

        def held() -> set[int]:
            return set(router.router.index.blocks_of(Rank(second_runtime.id)))

        store(first, [9] * 8)
        thread = threading.Thread(target=store, args=(second, PROMPT[:8]))
        thread.start()
        await asyncio.to_thread(thread.join)
        store(second, PROMPT[8:], first=-5, parent=101)
        await until("all four are known", lambda: held() == names(PROMPT))
        assert await router.best_worker(PROMPT) == (second_runtime.id, 0, 4)
        assert await router.best_worker_id(PROMPT) == (second_runtime.id, 4)
        items = [item async for item in await router.generate(PROMPT, "m", stop_conditions={"max_tokens": 2})]
        assert items == [{"token_ids": [7]}, {"token_ids": [8], "finish_reason": "stop", "cached_tokens": 4}]
        assert site.asked[-1][0] == second_runtime.id
        assert site.asked[-1][1] == {"token_ids": PROMPT, "model": "m", "stop_conditions": {"max_tokens": 2}}
        second.publish_removed([100])
        await until("it is gone", lambda: names(PROMPT) - held() == names(PROMPT[:4]))
        second.publish_batch([
            {"type": "removed", "block_hashes": [101, (1 << 64) - 5]},
            {"type": "stored", "token_ids": [5] * 7, "num_block_tokens": [4, 3], "block_hashes": [1, 2]},
        ])  # fmt: skip
        left = names([5] * 4) | (names(PROMPT) - names(PROMPT[:12]))
        await until("a part of a block is none", lambda: held() == left)
        with pytest.raises(ValueError, match="'stored' or 'removed'"):
            second.publish_batch([{"type": "moved"}])
        with pytest.raises(ValueError, match="token id"):
            second.publish_stored([-1] * 4, [4], [5])
        second.shutdown()
        store(second, [3] * 4)
        store(first, [3] * 4)
        await until("the first one's came", lambda: router.router.index.find(sorted(names([3] * 4))))
        assert names([3] * 4) - held()

    play(case)


def test_ranks_salts_and_adapters() -> None:
    """Two ranks of one instance share its numbers; a prompt of another namespace hits nothing of this one."""

    async def case(site: Site) -> None:
        runtime, (zero, one) = await site.worker(dp_ranks=2)
        router = await site.router()
        await until("it is followed", lambda: router.counts.counters["model_kv_snapshots_total"] == 1)
        zero.publish_stored(PROMPT[:4], [4], [1], lora_name="a", cache_salt="ns")
        store(one, PROMPT[:8])
        index = router.router.index
        await until("both are there", lambda: [index.count(Rank(runtime.id, rank)) for rank in (0, 1)] == [1, 2])
        assert (await router.best_worker(PROMPT, lora_name="a", cache_namespace="ns"))[2] == 1
        assert (await router.best_worker(PROMPT))[2] == 0, "requests go to rank 0, whose cache is another"
        assert router.counts.counters["model_kv_gaps_total"] == 0

    play(case)


def test_booked_requests_count_until_they_are_freed() -> None:
    async def case(site: Site) -> None:
        workers = [(await site.worker())[0].id for _ in range(2)]
        router = await site.router(use_kv_events=False)
        first, _, overlap = await router.best_worker(PROMPT, request_id="a")
        assert (first in workers, overlap) == (True, 0)
        loads = {one["worker_id"]: one for one in await router.get_potential_loads(list(range(100, 108)))}
        assert loads[first] == {
            "worker_id": first, "dp_rank": 0, "potential_prefill_tokens": 24, "potential_decode_blocks": 6,
            "active_requests": 1,
        }  # fmt: skip
        second, _, _ = await router.best_worker(list(range(100, 116)), request_id="b")
        assert {first, second} == set(workers), "the idle one"
        await router.mark_prefill_complete("a")
        loads = {one["worker_id"]: one for one in await router.get_potential_loads(PROMPT)}
        assert (loads[first]["potential_prefill_tokens"], loads[first]["active_requests"]) == (0, 1), "it is predicted"
        scores = await router.get_overlap_scores([*PROMPT, 1])
        assert (scores["block_size"], scores["num_blocks"], scores["shared_cache"]["enabled"]) == (BLOCK, 4, False)
        assert {one["worker_id"]: one["device_blocks"] for one in scores["workers"]} == {first: 4, second: 0}
        for request in ("a", "b", "a", "unknown"):
            await router.free(request)
        assert len(router.router.activity) == 0

    play(case)


def test_bookings_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_BOOKED", 3)

    async def case(site: Site) -> None:
        await site.worker()
        router = await site.router()
        for number in range(10):
            await router.best_worker(PROMPT, request_id=str(number))
        assert len(router.router.activity) == 3

    play(case)


@pytest.mark.parametrize(
    ("config", "blocks", "tokens"),
    [({}, 4, 16), ({"router_track_active_blocks": False}, 0, 16), ({"router_track_prefill_tokens": False}, 4, 0),
     ({"router_assume_kv_reuse": False}, 8, 16)],
)  # fmt: skip
def test_what_is_tracked_can_be_chosen(config: dict[str, Any], blocks: int, tokens: int) -> None:
    """Two requests for one prompt on one worker, the second with its prefill done."""

    async def case(site: Site) -> None:
        runtime, _ = await site.worker()
        router = await site.router(**config)
        await router.best_worker(PROMPT, request_id="a")
        await router.best_worker(PROMPT, request_id="b")
        await router.mark_prefill_complete("b")
        found = router.router.activity.load(Rank(runtime.id))
        assert (found.blocks, found.prefill_tokens, found.requests) == (blocks, tokens, 2)

    play(case)


def test_a_request_that_nobody_has_begun_goes_elsewhere() -> None:
    """A worker that refuses retryably is not asked twice; where all do, the last one's error is the answer."""

    async def case(site: Site) -> None:
        workers = [(await site.worker())[0].id for _ in range(2)]
        router = await site.router()
        site.failing[workers[0]] = WorkerUnavailable("leaving")
        for _ in range(6):
            assert len([item async for item in await router.generate(PROMPT, "m")]) == 2
        site.failing[workers[1]] = WorkerUnavailable("leaving too")
        with pytest.raises(WorkerUnavailable, match="leaving"):
            await anext(aiter(await router.generate(PROMPT, "m")))
        site.failing = {workers[1]: InvalidArgument("no")}
        with pytest.raises(InvalidArgument, match="no"):
            await anext(aiter(await router.generate(PROMPT, "m", worker_id=workers[1])))
        assert len(router.router.activity) == 0

    play(case)


def test_a_request_can_be_pinned_and_given_up() -> None:
    async def case(site: Site) -> None:
        workers = [(await site.worker())[0].id for _ in range(3)]
        router = await site.router()
        for worker in workers:
            stream = await router.generate_from_request({"token_ids": PROMPT, "routing": {"decode_worker_id": worker}})
            assert await anext(stream) == {"token_ids": [7]}
            assert site.asked[-1][0] == worker
            assert site.asked[-1][1]["model"] == "unknown"
        allowed = {"token_ids": PROMPT, "model": "slow", "routing": {"allowed_worker_ids": workers[1:2]}}
        stream = await router.generate_from_request(allowed)
        assert await anext(stream) == {"token_ids": [7]}
        assert (site.asked[-1][0], len(router.router.activity)) == (workers[1], 1)
        await stream.aclose()  # type: ignore[attr-defined]
        await until("the worker has stopped", lambda: site.cancelled)
        assert len(router.router.activity) == 0

    play(case)


@pytest.mark.parametrize(
    "request_",
    [
        "x", {}, {"token_ids": "abc"}, {"token_ids": [-1]}, {"token_ids": ["a"] * 8}, {"token_ids": [1], "routing": 3},
        {"token_ids": [1], "routing": {"dp_rank": 1}}, {"token_ids": [1], "routing": {"backend_instance_id": "x"}},
        {"token_ids": [1], "router_config_override": {"router_temperature": 1}},
        {"token_ids": [1], "mm_routing_info": {"block_mm_infos": [3]}},
        {"token_ids": [1] * 4, "routing": {"lora_name": 3}},
        {"token_ids": [1], "routing": {"allowed_worker_ids": 3}},
    ],
)  # fmt: skip
def test_bad_requests_are_refused_with_a_sentence(request_: Any) -> None:
    async def case(site: Site) -> None:
        await site.worker()
        router = await site.router()
        with pytest.raises(InvalidArgument, match=r"\w+ \w+"):
            await router.generate_from_request(request_)

    play(case)


def test_nobody_there() -> None:
    async def case(site: Site) -> None:
        router = await site.router()
        with pytest.raises(NoInstances, match=r"nobody serves ns\.backend\.generate now"):
            await router.best_worker(PROMPT)
        with pytest.raises(NoInstances, match="as instance 5"):
            await anext(aiter(await router.generate(PROMPT, "m", worker_id=5)))

    play(case)


def test_two_routers_count_each_others_requests() -> None:
    async def case(site: Site) -> None:
        runtime, _ = await site.worker()
        one, other = [await site.router(router_replica_sync=True) for _ in range(2)]
        await until("they hear each other", lambda: one._replicas.peers == other._replicas.peers == 1)  # type: ignore[union-attr]
        await one.best_worker(PROMPT, request_id="a")
        await until("the other counts it", lambda: other.router.activity.load(Rank(runtime.id)).requests == 1)
        await one.free("a")
        await until("it is over there too", lambda: not len(other.router.activity))

    play(case)


def test_a_worker_that_publishes_late_is_followed() -> None:
    """The publisher was made after the endpoint was served: its record then says so."""

    async def case(site: Site) -> None:
        runtime = await site.runtime()
        await runtime.endpoint(PATH).start(lambda incoming: incoming.finish(), figures={"max_num_seqs": 3})
        router = await site.router()
        assert router.counts.unfollowed == {"no_events": 1}
        publisher = KvEventPublisher(runtime.endpoint(PATH), runtime.id, BLOCK)
        await until("it is followed", lambda: router.counts.counters["model_kv_snapshots_total"] == 1)
        assert router.counts.unfollowed["no_events"] == 0
        store(publisher, PROMPT)
        await until("its blocks are known", lambda: router.router.index.count(Rank(runtime.id)) == 4)
        (instance,) = router._view.instances.values()
        assert instance.figures == {"max_num_seqs": 3, "kv_events": True, "kv_cache_block_size": BLOCK}

    play(case)


@pytest.mark.parametrize("whole_component", [False, True])
def test_an_indexer_for_programs_that_choose_themselves(whole_component: bool) -> None:
    """The ages 0.3 to 1.0: of a component or an endpoint; a worker that leaves takes its blocks along."""

    async def case(site: Site) -> None:
        runtime, (publisher,) = await site.worker()
        await (await site.runtime()).endpoint("ns.backend.other").start(lambda incoming: incoming.finish())
        await (await site.runtime()).endpoint("ns.else.generate").start(lambda incoming: incoming.finish())
        mine = await site.runtime()
        source = mine.namespace("ns").component("backend") if whole_component else mine.endpoint(PATH)
        indexer = KvIndexer(source, BLOCK)
        assert (indexer.block_size(), (await indexer.find_matches_for_request(PROMPT)).scores) == (BLOCK, {})
        await until("it is followed", lambda: indexer.counts.counters["model_kv_snapshots_total"] == 1)
        assert not any(indexer.counts.unfollowed.values())
        store(publisher, PROMPT[:8])
        publisher.publish_stored(PROMPT[:4], [4], [9], lora_name="3")
        await until("its blocks are known", lambda: len(indexer.router.index) == 3)
        assert (await indexer.find_matches_for_request(PROMPT)).scores == {(runtime.id, 0): 2}
        assert (await indexer.find_matches_for_request(PROMPT, lora_id=3)).scores == {(runtime.id, 0): 1}
        assert (await indexer.find_matches(compute_block_hash_for_seq(PROMPT[:4], BLOCK))).scores == {
            (runtime.id, 0): 1
        }
        await runtime.shutdown(0)
        await until("it is gone", lambda: not list(indexer.router.index.ranks))

    play(case)


def test_an_approximate_indexer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent counts for a while, by rank."""
    now = [100.0]
    monkeypatch.setattr("dynamo.llm.kv.indexers.time.monotonic", lambda: now[0])

    async def case() -> None:
        site = Site()
        indexer = ApproxKvIndexer((await site.runtime()).endpoint(PATH), BLOCK, router_ttl_secs=10)
        await indexer.process_routing_decision_for_request(PROMPT[:8], 5)
        await indexer.process_routing_decision_for_request(PROMPT, 5, dp_rank=1)
        assert (await indexer.find_matches_for_request(PROMPT)).scores == {(5, 0): 2, (5, 1): 4}
        assert (await indexer.find_matches_for_request(PROMPT, lora_name="a")).scores == {}
        now[0] += 11
        assert (await indexer.find_matches_for_request(PROMPT)).scores == {}
        monkeypatch.undo()
        await site.close()

    asyncio.run(case())


def test_publishers_refuse_what_cant_be() -> None:
    async def case(site: Site) -> None:
        endpoint = (await site.runtime()).endpoint(PATH)
        for worker, size, rank, said in ((None, 0, 0, "kv_block_size"), (None, 4, -1, "rank"), (3, 4, 0, "not this")):
            with pytest.raises(ValueError, match=said):
                KvEventPublisher(endpoint, worker, size, rank)
        relaying = KvEventPublisher(endpoint, None, 4, zmq_endpoint="tcp://127.0.0.1:5557")
        with pytest.raises(ValueError, match="relays"):
            relaying.publish_removed([1])
        relaying.shutdown()
        with pytest.raises(ValueError, match="can't do ais_perf_config"):
            KvRouter(endpoint, 4, ais_perf_config={})
        with pytest.raises(ValueError, match="block_size"):
            KvRouter(endpoint, 0)

    play(case)


def test_load_reaches_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of the ranks, the newest of each; at most one write in a while however often it is said."""
    monkeypatch.setattr(load, "SECONDS", 0.2)

    async def case(site: Site) -> None:
        runtime, _ = await site.worker()
        router = await site.router()

        def figures() -> dict[str, Any]:
            return next(iter(router._view.instances.values())).figures

        publisher = WorkerMetricsPublisher()
        with pytest.raises(ValueError, match="create_endpoint"):
            publisher.publish()
        await publisher.create_endpoint(runtime.endpoint(PATH))
        writes: list[dict[str, Any]] = []
        announce = runtime.announce

        def write(path: Any, found: dict[str, Any]) -> None:
            writes.append(found)
            announce(path, found)

        monkeypatch.setattr(runtime, "announce", write)
        for number in range(100):
            publisher.publish(0, number, number)
        publisher.publish(dp_rank=1, kv_used_blocks=5)
        await until("the newest is there", lambda: figures().get("used_kv_blocks") == 104)
        assert figures()["active_decode_blocks"] == 99
        assert len(writes) <= 2
        older = ForwardPassMetrics(WorkerStats(3, 8, 2), KvStats(40, 100, 0.4, 0.9))
        publisher.publish(older)
        await until("0.x's form too", lambda: figures().get("waiting") == 2)
        assert (figures()["running"], figures()["max_num_seqs"], figures()["total_kv_blocks"]) == (3, 8, 100)
        with pytest.raises(ValueError, match="not negative"):
            publisher.publish(0, -1)

    play(case)


def test_configurations() -> None:
    """The original's keywords: meant, without effect, refused; the older word for prefill."""
    assert KvRouterConfig().weights() == KvRouterConfig.from_json("{}").weights()
    assert KvRouterConfig(0).overlap_score_credit == 0.0
    assert KvRouterConfig(2.0, 0.5, 0.5, 0.3, False).weights().prefill_load_scale == 2.0
    older = KvRouterConfig(overlap_score_weight=2, router_snapshot_threshold=5, host_cache_hit_weight=0.1)
    assert (older.prefill_load_scale, older.copy().prefill_load_scale) == (2.0, 2.0)
    changed = older.with_overrides(overlap_score_credit=0.5, router_temperature=0.7)
    assert (changed.overlap_score_credit, changed.prefill_load_scale, changed.router_temperature) == (0.5, 2.0, 0.7)
    assert "router_temperature=0.7" in repr(changed)
    for arguments, said in (
        ({"x": 1}, "has no x"), ({"router_temperature": -1}, "not negative"), ({"use_kv_events": 1}, "True or False"),
        ({"router_temperature": float("nan")}, "not negative"), ({"use_remote_indexer": True}, "not supported"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            KvRouterConfig(**arguments)
    with pytest.raises(ValueError, match="positional"):
        KvRouterConfig(1, 2, 3, 4, True, 6)
    with pytest.raises(ValueError, match="an object"):
        KvRouterConfig.from_json("[]")
    with pytest.raises(ValueError, match="with_overrides"):
        older.with_overrides(use_kv_events=1)
    with pytest.raises(AttributeError, match="has no y"):
        _ = older.y


@pytest.mark.parametrize(
    "item",
    [
        [[1, 2], None, None], [[1], "stop", {"cached_tokens": 3, "log_probs": [-0.5]}], ["text", "length", None],
        [[], "error", {"message": "no room"}],
    ],
)  # fmt: skip
def test_outputs_are_read_as_they_were_meant(item: Any) -> None:
    """A delta, as the original's dict, read again."""
    assert read_delta(output_dict(item)) == item
    assert output_dict(5) == {"token_ids": [5]}
    assert output_dict({"any": "thing"}) == {"any": "thing"}
