"""Data-parallel ranks in whole frontends: which rank a request goes to, how it is named, what is refused."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

TEXT = "/v1/completions"
HELLO = {"model": "m", "prompt": "hello", "max_tokens": 2}
KV = {"router_mode": "kv", "use_kv_events": False}
MODES: list[dict[str, Any]] = [{}, {"router_mode": "least-loaded"}, KV]
modes = pytest.mark.parametrize("mode", MODES, ids=["round-robin", "least-loaded", "kv"])
RANKS = {"data_parallel_size": 4, "total_kv_blocks": 100, "max_num_batched_tokens": 64}
PINS: dict[str, Any] = {
    "nvext.dp_rank": ({}, {"dp_rank": 2}),
    "x-dynamo-dp-rank": ({"x-dynamo-dp-rank": "2"}, {"dp_rank": 1}),
    "x-dp-rank": ({"x-dp-rank": "2"}, None),
    "x-data-parallel-rank": ({"x-data-parallel-rank": "2"}, None),
}


def rank_of(seen: dict[str, Any]) -> int | None:
    """What a worker was told."""
    value: int | None = seen.get("routing", {}).get("dp_rank")
    return value


@modes
@pytest.mark.parametrize("how", PINS)
def test_a_pinned_rank_is_carried_to_the_worker(make_site: Any, engines: Any, mode: dict[str, Any], how: str) -> None:
    """In every mode; a header wins over the field, and the answer says it."""
    site = make_site(**mode)
    engine = engines()
    worker = site.worker(engine, figures=RANKS)
    headers, nvext = PINS[how]
    nvext = {**(nvext or {}), "extra_fields": ["worker_id", "routing"]}
    said = site.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers).json()["nvext"]
    assert [rank_of(seen) for seen in engine.seen] == [2]
    assert said["worker_id"] == {
        "prefill_worker_id": worker.id, "prefill_dp_rank": 2, "decode_worker_id": worker.id, "decode_dp_rank": 2,
    }  # fmt: skip
    assert said["routing"]["dp_rank"] == 2


@modes
@pytest.mark.parametrize("how", PINS)
def test_a_rank_that_is_not_there_is_a_400(make_site: Any, engines: Any, mode: dict[str, Any], how: str) -> None:
    """It names the field and the ranks that there are, and no worker hears of it."""
    site = make_site(**mode)
    engine = engines()
    instance = site.worker(engine, figures={**RANKS, "data_parallel_size": 2}).id
    for more, where in (({}, "model 'm'"), ({"backend_instance_id": instance}, f"instance {instance}")):
        headers, nvext = PINS[how]
        nvext = {**(nvext or {}), **more}
        answer = site.post(TEXT, {**HELLO, "nvext": nvext}, headers=headers)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, how), answer.text
        assert f"there is no data-parallel rank 2; {where} has ranks 0 to 1" in error["message"]
    assert engine.seen == []


def test_workers_without_that_rank_are_passed_over(make_site: Any, engines: Any) -> None:
    """Also in a rollout, where the other card's workers have fewer."""
    site = make_site()
    few, many, other = engines(), engines(), engines()
    site.worker(few)
    site.worker(many, figures=RANKS)
    site.worker(other, context_length=512)
    for _ in range(6):
        assert site.post(TEXT, {**HELLO, "nvext": {"dp_rank": 3}}).status_code == 200
    assert (len(few.seen), len(many.seen), len(other.seen)) == (0, 6, 0)


def test_other_modes_leave_it_to_the_worker(make_site: Any, engines: Any) -> None:
    """Nothing is said to it, and nothing is claimed of it; one rank is not worth a word either."""
    for figures in (RANKS, {}):
        site = make_site()
        engine = engines()
        site.worker(engine, figures=figures)
        said = site.post(TEXT, {**HELLO, "nvext": {"extra_fields": ["worker_id", "routing"]}}).json()["nvext"]
        assert "routing" not in engine.seen[0]
        assert said["worker_id"].get("decode_dp_rank") == (None if figures else 0)
        assert said["routing"].get("dp_rank") == (None if figures else 0)


def test_kv_mode_keeps_a_prompt_on_its_rank(make_site: Any, engines: Any, within: Any) -> None:
    """Two workers of four ranks: eight prompts at once go to eight ranks, and each again to its own."""
    site = make_site(**KV)
    pair = [engines(), engines()]
    for engine in pair:
        site.worker(engine, figures=RANKS, kv_cache_block_size=8)

    def prompt(number: int) -> dict[str, Any]:
        return {**HELLO, "prompt": f"{number}" * 40, "nvext": {"extra_fields": ["worker_id", "routing"]}}

    def places(answers: list[Any]) -> list[tuple[int, int]]:
        said = [answer.json()["nvext"]["worker_id"] for answer in answers]
        return [(entry["decode_worker_id"], entry["decode_dp_rank"]) for entry in said]

    async def hold(event: asyncio.Event | None) -> None:
        for engine in pair:
            engine.hold = event

    async def event() -> asyncio.Event:
        return asyncio.Event()

    held = site.run(event())
    site.run(hold(held))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(site.post, TEXT, prompt(number)) for number in range(8)]
        within("all are there", lambda: len(pair[0].seen) + len(pair[1].seen) == 8)
        site.call(held.set)
        first = places([request.result(20) for request in asked])
    site.run(hold(None))
    assert len(set(first)) == 8
    results = {(index, rank_of(seen)) for index, engine in enumerate(pair) for seen in engine.seen}
    assert results == {(index, rank) for index in range(2) for rank in range(4)}
    again = [site.post(TEXT, prompt(number)) for number in range(8)]
    assert places(again) == first
    assert {answer.json()["nvext"]["routing"]["overlap_blocks"] for answer in again} == {5}


def test_query_says_the_rank(make_site: Any, engines: Any) -> None:
    """`query_instance_id:` with what a request can be pinned to."""
    site = make_site(**KV)
    site.worker(engines(), figures=RANKS)
    body = {**HELLO, "nvext": {"annotations": ["query_instance_id:"], "dp_rank": 3}}
    assert site.post(TEXT, body).json()["nvext"]["worker_id"]["decode_dp_rank"] == 3


@modes
def test_a_session_stays_on_one_rank(make_site: Any, engines: Any, mode: dict[str, Any]) -> None:
    """In mode kv since its prompts are there, in the others by its name; sessions are spread over the ranks."""
    site = make_site(**mode, router_session_affinity_ttl_secs=60)
    engine = engines()
    site.worker(engine, figures=RANKS, kv_cache_block_size=8)
    for number in range(12):
        for turn in (1, 2):
            body = {**HELLO, "prompt": f"{number:02}" * 20 * turn}
            assert site.post(TEXT, body, headers={"x-dynamo-session-id": f"s{number}"}).status_code == 200
    ranks = [rank_of(seen) for seen in engine.seen]
    assert ranks[::2] == ranks[1::2]
    assert len(set(ranks)) > 1


def test_a_worker_is_busy_when_all_its_ranks_are(make_site: Any, engines: Any, within: Any) -> None:
    """Thresholds are a rank's: a free one takes the request; a request to a busy rank of a worker is refused."""
    site = make_site(**KV, active_decode_blocks_threshold=0.05)
    engine = engines()
    worker = site.worker(engine, figures={**RANKS, "data_parallel_size": 2}, kv_cache_block_size=4).id

    async def event() -> asyncio.Event:
        return asyncio.Event()

    engine.hold = site.run(event())
    long = {**HELLO, "prompt": "x" * 40}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(site.post, TEXT, {**long, "nvext": {"dp_rank": 0}})]
        within("the first is there", lambda: len(engine.seen) == 1)
        pinned = {**HELLO, "nvext": {"backend_instance_id": worker, "dp_rank": 0}}
        assert site.post(TEXT, pinned).status_code == 503
        asked.append(pool.submit(site.post, TEXT, long))  # cached on rank 0, which is busy
        within("the second is there", lambda: len(engine.seen) == 2)
        assert [rank_of(seen) for seen in engine.seen] == [0, 1]
        answer = site.post(TEXT, HELLO)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")
        site.call(engine.hold.set)
        assert [request.result(20).status_code for request in asked] == [200, 200]


def test_outside_kv_mode_all_ranks_count_together(make_site: Any, engines: Any, within: Any) -> None:
    """Ten of a hundred blocks are more than 5% of one rank, and less of four."""
    for ranks, status in ((1, 503), (4, 200)):
        site = make_site(active_decode_blocks_threshold=0.05)
        engine = engines()
        site.worker(engine, figures={**RANKS, "data_parallel_size": ranks}, kv_cache_block_size=4)

        async def event() -> asyncio.Event:
            return asyncio.Event()

        engine.hold = site.run(event())
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(site.post, TEXT, {**HELLO, "prompt": "x" * 40})
            within("the first is there", lambda: len(engine.seen) == 1)  # noqa: B023 - asked at once
            second = pool.submit(site.post, TEXT, HELLO)
            within("the second is there, or refused", lambda: len(engine.seen) == 2 or second.done())  # noqa: B023
            site.call(engine.hold.set)
            assert (first.result(20).status_code, second.result(20).status_code) == (200, status)


def test_the_log_says_the_rank(make_site: Any, engines: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One line at -v; where the worker chooses it says so."""
    caplog.set_level("DEBUG", "dynamo.frontend")
    site = make_site()
    site.worker(engines(), figures=RANKS)
    site.post(TEXT, HELLO)
    site.post(TEXT, {**HELLO, "nvext": {"dp_rank": 1}})
    lines = [line for line in caplog.messages if " goes to instance " in line]
    assert [(") any rank" in line, ") rank 1" in line) for line in lines] == [(True, False), (False, True)]
