"""`KvRouter` and its configuration as programs use them, over memory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.llm.kv_router.programs import BLOCK, PATH, PROMPT, Site, names, play, store
from tests.waiting import until

from dynamo.llm import KvRouter, KvRouterConfig
from dynamo.llm.kv.index import Rank
from dynamo.llm.kv_router import router as service
from dynamo.llm.protocols import output_dict, read_delta
from dynamo.runtime import CannotConnect, InvalidArgument, NoInstances, WorkerUnavailable


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


def test_booked_requests_count_until_they_are_freed() -> None:
    async def case(site: Site) -> None:
        workers = [(await site.worker())[0].id for _ in range(2)]
        router = await site.router(use_kv_events=False)
        first, _, overlap = await router.best_worker(PROMPT, request_id="a")
        assert (first in workers, overlap) == (True, 0)
        loads = {load["worker_id"]: load for load in await router.get_potential_loads(list(range(100, 108)))}
        assert loads[first] == {
            "worker_id": first, "dp_rank": 0, "potential_prefill_tokens": 24, "potential_decode_blocks": 6,
            "active_requests": 1,
        }  # fmt: skip
        second, _, _ = await router.best_worker(list(range(100, 116)), request_id="b")
        assert {first, second} == set(workers), "the idle one"
        await router.mark_prefill_complete("a")
        loads = {load["worker_id"]: load for load in await router.get_potential_loads(PROMPT)}
        assert (loads[first]["potential_prefill_tokens"], loads[first]["active_requests"]) == (0, 1), "it is predicted"
        scores = await router.get_overlap_scores([*PROMPT, 1])
        assert (scores["block_size"], scores["num_blocks"], scores["shared_cache"]["enabled"]) == (BLOCK, 4, False)
        assert {score["worker_id"]: score["device_blocks"] for score in scores["workers"]} == {first: 4, second: 0}
        for request in ("a", "b", "a", "unknown"):
            await router.free(request)
        assert len(router.router.activity) == 0

    play(case)


def test_a_request_may_weigh_otherwise() -> None:
    """One worker has the prompt cached and is busy: which of them counts more is the request's to say."""

    async def case(site: Site) -> None:
        cached, (publisher,) = await site.worker()
        idle, _ = await site.worker()
        router = await site.router()
        store(publisher, PROMPT)
        await until("it is known", lambda: router.router.index.count(Rank(cached.id)) == 4)
        assert (await router.best_worker(PROMPT, request_id="a", router_config_override={}))[0] == cached.id
        for number in range(3):
            override = {"overlap_score_weight": 9, "assume_kv_reuse": False, "track_prefill_tokens": False}
            assert (await router.best_worker(PROMPT, override, str(number)))[0] == cached.id
        assert router.router.activity.load(Rank(cached.id)) == (0, 16, 4)
        assert (await router.best_worker(PROMPT))[0] == idle.id
        assert (await router.best_worker(PROMPT, {"prefill_load_scale": 5.0}))[0] == cached.id

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
        document = router.router.activity.load(Rank(runtime.id))
        assert (document.blocks, document.prefill_tokens, document.requests) == (blocks, tokens, 2)

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


def test_a_request_goes_to_a_rank() -> None:
    """The one that holds its prompt, or the one that it names; the worker is told which, with what else it was."""

    async def case(site: Site) -> None:
        worker, publishers = await site.worker(dp_ranks=2)
        router = await site.router()
        await until("it is followed", lambda: router.counts.counters["model_kv_snapshots_total"] == 1)
        store(publishers[1], PROMPT)
        await until("its second rank's cache is known", lambda: router.router.index.count(Rank(worker.id, 1)) == 4)
        assert await router.best_worker(PROMPT) == (worker.id, 1, 4)
        for routing, rank in (({"lora_id": 3}, 1), ({"dp_rank": 0}, 0)):
            stream = await router.generate_from_request({"token_ids": PROMPT, "routing": routing})
            assert await anext(stream) == {"token_ids": [7]}
            assert site.asked[-1][1]["routing"] == routing | {"dp_rank": rank}
        with pytest.raises(InvalidArgument, match="no data-parallel rank 2"):
            await router.generate(PROMPT, "m", dp_rank=2)
        scores = await router.get_overlap_scores(PROMPT)
        assert [(score["dp_rank"], score["device_blocks"]) for score in scores["workers"]] == [(0, 0), (1, 4)]

    play(case)


@pytest.mark.parametrize(
    "request_",
    [
        "x", {}, {"token_ids": "abc"}, {"token_ids": [-1]}, {"token_ids": ["a"] * 8}, {"token_ids": [1], "routing": 3},
        {"token_ids": [1], "routing": {"dp_rank": 1}}, {"token_ids": [1], "routing": {"backend_instance_id": "x"}},
        {"token_ids": [1], "router_config_override": {"router_temperature": -1}},
        {"token_ids": [1], "router_config_override": {"use_kv_events": False}},
        {"token_ids": [1], "router_config_override": 3}, {"token_ids": [1], "router_config_override": {1: 2}},
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


def test_a_start_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd was away when the first question came."""

    async def case(site: Site) -> None:
        runtime, _ = await site.worker()
        mine = await site.runtime()
        client = mine.client

        async def away(*_: Any) -> Any:
            raise CannotConnect("etcd is away")

        monkeypatch.setattr(mine, "client", away)
        router = KvRouter(mine.endpoint(PATH), BLOCK)
        for _ in range(2):
            with pytest.raises(CannotConnect, match="etcd is away"):
                await router.best_worker(PROMPT)
        monkeypatch.setattr(mine, "client", client)
        assert await router.best_worker(PROMPT) == (runtime.id, 0, 0)

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
        first, other = [await site.router(router_replica_sync=True) for _ in range(2)]
        await until("they hear each other", lambda: first._replicas.peers == other._replicas.peers == 1)  # type: ignore[union-attr]
        await first.best_worker(PROMPT, request_id="a")
        await until("the other counts it", lambda: other.router.activity.load(Rank(runtime.id)).requests == 1)
        await first.free("a")
        await until("it is over there too", lambda: not len(other.router.activity))

    play(case)


def test_configurations() -> None:
    """NVIDIA Dynamo's keywords: meant, without effect, refused; the older word for prefill."""
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
    with pytest.raises(ValueError, match="use_kv_events among"):
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
    """A delta, as NVIDIA Dynamo's dict, read again."""
    assert read_delta(output_dict(item)) == item
    assert output_dict(5) == {"token_ids": [5]}
    assert output_dict({"any": "thing"}) == {"any": "thing"}
