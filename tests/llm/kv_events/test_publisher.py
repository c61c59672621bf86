"""`KvEventPublisher`, `WorkerMetricsPublisher` and the older indexers as programs use them, over memory."""

from __future__ import annotations

from typing import Any

import pytest
from tests.llm.kv_router.programs import BLOCK, PATH, PROMPT, Site, play, store
from tests.waiting import until

from dynamo.llm import (
    ApproxKvIndexer,
    ForwardPassMetrics,
    KvEventPublisher,
    KvIndexer,
    KvRouter,
    KvStats,
    WorkerMetricsPublisher,
    WorkerStats,
    compute_block_hash_for_seq,
)
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv_events import load_publisher


def test_ranks_salts_and_adapters() -> None:
    """Two ranks of one instance share its numbers; a prompt of another namespace hits nothing of this one."""

    async def case(site: Site) -> None:
        runtime, (zero, second_rank) = await site.worker(dp_ranks=2)
        router = await site.router()
        await until("it is followed", lambda: router.counts.counters["model_kv_snapshots_total"] == 1)
        zero.publish_stored(PROMPT[:4], [4], [1], lora_name="a", cache_salt="ns")
        store(second_rank, PROMPT[:8])
        index = router.router.index
        await until("both are there", lambda: [index.count(Rank(runtime.id, rank)) for rank in (0, 1)] == [1, 2])
        assert (await router.best_worker(PROMPT, lora_name="a", cache_namespace="ns"))[2] == 1
        assert await router.best_worker(PROMPT) == (runtime.id, 1, 2), "rank 0 has it for another namespace only"
        assert router.counts.counters["model_kv_gaps_total"] == 0

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


async def test_an_approximate_indexer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent counts for a while, by rank."""
    now = [100.0]
    monkeypatch.setattr("dynamo.llm.kv_router.legacy_indexers.time.monotonic", lambda: now[0])

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
    monkeypatch.setattr(load_publisher, "SECONDS", 0.2)

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

        def write(path: Any, fields: dict[str, Any]) -> None:
            writes.append(fields)
            announce(path, fields)

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
