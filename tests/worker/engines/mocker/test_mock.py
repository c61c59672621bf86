"""The mock engine's pure parts: formulas, blocks that are never lost, sequences that always end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.mocker.arguments import read_arguments
from dynamo.worker.engines.mocker.scheduler import BlockPool, Limits, Scheduler, Sequence
from dynamo.worker.engines.mocker.stepper import Timing, decode_ms, prefill_ms


@pytest.mark.parametrize(("tokens", "ms"), [(0, 0.0), (1, 16.516604), (1000, 32.105850), (8192, 169.135768)])
def test_prefill_follows_the_polynomial(tokens: int, ms: float) -> None:
    """Prefill time is the original's polynomial, and nothing for nothing."""
    assert prefill_ms(tokens) == pytest.approx(ms, rel=1e-5)


@pytest.mark.parametrize(("usage", "ms"), [(0.0, 5.74), (0.5, 26.31), (1.0, 34.01), (7.0, 34.01)])
def test_decode_follows_the_polynomial(usage: float, ms: float) -> None:
    """Decode time grows with the share of KV blocks in use, which is 1 at most."""
    assert decode_ms(usage) == pytest.approx(ms, rel=1e-5)


def test_speedups_divide() -> None:
    """Both ratios divide decoding, the first one alone prefill; 0 means no simulated time."""
    assert Timing(2.0, 5.0).step_seconds(0, 0.0, True) == pytest.approx(5.74 / 10 / 1000)
    assert Timing(2.0, 5.0).step_seconds(1000, 0.0, False) == pytest.approx(32.105850 / 2 / 1000, rel=1e-5)
    assert Timing(0.0).step_seconds(1000, 1.0, True) == 0.0


def test_blocks_have_the_names_that_a_router_gives_them() -> None:
    """What is cached after a prompt and its answer is what hashing all their tokens gives."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=4))
    sequence = scheduler.add(None, list(range(10)))
    for token in range(10, 17):
        assert scheduler.plan().producing
        scheduler.advance(sequence, token)
    expected = sequence_hashes(block_hashes(range(17), 4))
    assert len(expected) == 4
    assert set(scheduler.pool.names()) == set(expected)


def test_pool_evicts_the_least_recently_used() -> None:
    """A full pool drops the inactive block that was released first, and never an active one."""
    pool = BlockPool(2)
    assert pool.take_nameless(2)
    pool.promote(1)
    pool.promote(2)
    assert not pool.take_nameless()
    pool.release([1, 2])
    assert pool.match([1, 2]) == 2
    assert pool.take_nameless()  # 2 was let go before 1
    assert (pool.match([1]), pool.match([2])) == (1, 0)
    assert (pool.used, pool.cached) == (1, 1)
    assert pool.take_changes() == ([1], [], 0, False)  # 2 came and went: nobody needs to hear of it
    assert not pool.take_nameless(2)
    assert (pool.used, pool.cached) == (1, 1)
    assert pool.take_nameless()
    assert pool.take_changes() == ([], [1], 0, False)
    assert pool.take_changes() is None


def test_a_hit_makes_a_block_younger() -> None:
    """LRU means used last, not stored last."""
    pool = BlockPool(2)
    for name in (1, 2):
        assert pool.take_nameless()
        pool.promote(name)
        pool.release([name])
    pool.take([1])
    pool.release([1])
    assert pool.take_nameless()
    assert set(pool.names()) == {1}


def test_what_is_not_computed_yet_is_no_hit() -> None:
    """A prompt that is aborted in the middle of its prefill leaves what was computed of it, and no more."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=4, max_num_batched_tokens=8))
    first = scheduler.add(None, list(range(20)))
    assert scheduler.plan().prefill_tokens == 8
    second = scheduler.add(None, list(range(20)))
    scheduler.remove(first)
    assert scheduler.plan().prefill_tokens == 8
    assert second.cached_tokens == 8


def test_two_that_compute_the_same_share_it_in_the_end() -> None:
    """The second finds the first's blocks there when its own are computed, and gives its copies back."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=4, max_num_batched_tokens=16))
    for _ in range(2):
        scheduler.add(None, list(range(16)))
    scheduler.plan()
    assert scheduler.pool.used == 4
    scheduler.plan()
    assert scheduler.pool.used == 4
    assert len(set(scheduler.pool.names())) == 4


def test_without_prefix_caching_nothing_is_shared_or_told() -> None:
    """Each sequence holds its own blocks, and an event is never due."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=4, enable_prefix_caching=False))
    sequences = [scheduler.add(None, list(range(16))) for _ in range(2)]
    assert scheduler.plan().prefill_tokens == 32
    assert scheduler.pool.used == 8
    for sequence in sequences:
        scheduler.remove(sequence)
    assert (scheduler.pool.used, scheduler.pool.cached) == (0, 0)
    assert scheduler.pool.take_changes() is None


requests = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=12)


@given(requests, st.integers(12, 30), st.booleans(), st.booleans(), st.sampled_from(["lifo", "fifo"]))
def test_every_sequence_ends_and_blocks_are_conserved(
    wanted: list[tuple[int, int, int]], blocks: int, caching: bool, chunked: bool, mode: str
) -> None:
    """Whatever is asked of a small cache: each sequence gets its tokens, and in the end no block is held."""
    limits = Limits(
        num_gpu_blocks=blocks, block_size=8, max_num_seqs=4, max_num_batched_tokens=32, watermark=0.0,
        enable_prefix_caching=caching, enable_chunked_prefill=chunked, preemption_mode=mode,
    )  # fmt: skip
    scheduler: Scheduler[list[int]] = Scheduler(limits)
    left: dict[Sequence[list[int]], int] = {}
    for prompt, answer, kind in wanted:
        if prompt + answer <= scheduler.longest:
            sequence = scheduler.add([], [kind] * prompt)
            left[sequence] = answer
    told: set[int] = set()
    for _ in range(5000):
        if not left:
            break
        plan = scheduler.plan()
        assert plan.producing or plan.prefill_tokens
        assert scheduler.pool.used + scheduler.pool.cached <= blocks
        for sequence in plan.producing:
            if sequence.running:
                left[sequence] -= 1
                if left[sequence]:
                    scheduler.advance(sequence, 5)
                else:
                    scheduler.remove(sequence)
                    del left[sequence]
        if (step := scheduler.pool.take_changes()) is not None:
            assert not told & set(step.stored)
            assert set(step.removed) <= told
            told = (told - set(step.removed)) | set(step.stored)
        assert told == set(scheduler.pool.names())
        assert caching or not told
    assert not left
    assert scheduler.pool.used == 0
    assert (scheduler.running, scheduler.waiting) == (0, 0)


def test_a_second_turn_is_cheap() -> None:
    """A prompt that extends an earlier one pays only for what is new."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=16))
    first = scheduler.add(None, list(range(160)))
    assert scheduler.plan().prefill_tokens == 160
    scheduler.remove(first)
    second = scheduler.add(None, list(range(200)))
    assert scheduler.plan().prefill_tokens == 40
    assert second.cached_tokens == 160


def test_chunked_prefill_spreads_a_long_prompt() -> None:
    """A prompt over the budget takes several steps and gives no token before the last."""
    scheduler: Scheduler[None] = Scheduler(Limits(max_num_batched_tokens=100))
    scheduler.add(None, list(range(250)))
    plans = [scheduler.plan() for _ in range(3)]
    assert [p.prefill_tokens for p in plans] == [100, 100, 50]
    assert [len(p.producing) for p in plans] == [0, 0, 1]


def test_both_forms_of_arguments() -> None:
    """Flat and nested files mean the same; what the original has and we don't need is let through."""
    flat = read_arguments({"speedup_ratio": 10, "num_gpu_blocks": 99, "dp_size": 1}, 16)
    nested = read_arguments({"engine": {"speedup_ratio": 10, "num_gpu_blocks": 99, "backend": "vllm"}}, 16)
    assert flat == nested
    assert (flat.limits.block_size, flat.timing.speedup_ratio) == (16, 10.0)
    hyphens = {
        "speedup-ratio": 10,
        "num-gpu-blocks-override": 99,
        "data-parallel-size": 1,
        "disaggregation-mode": "agg",
    }
    said = read_arguments({**hyphens, "kv-transfer-bandwidth": 64, "is_prefill": False}, 16)
    assert said == replace(flat, role="aggregated")
    assert flat.role is None


def test_prefill_and_decode_in_all_their_forms() -> None:
    """The newer word, the older ones, and the session's timeout where the original has it."""
    for role in ("prefill", "decode"):
        forms: list[dict[str, Any]] = [
            {"disaggregation_mode": role}, {f"is_{role}": True}, {"engine": {"disaggregation-mode": role}},
        ]  # fmt: skip
        for form in forms:
            assert read_arguments(form, 16).role == role
    whole: dict[str, Any] = {
        "kv_transfer_bandwidth": 450, "kv_bytes_per_token": "auto", "kv_cache_dtype": "fp8",
        "kv_transfer_timing_mode": "full-prompt", "dynamo": {"handoff_session_timeout_ms": 50, "bootstrap_port": 1},
    }  # fmt: skip
    read = read_arguments(whole, 16)
    assert read.link == (450.0, None, "fp8")
    assert read.handoff_session_timeout_ms == 50
    assert read_arguments({"kv_bytes_per_token": 1000}, 16).link == (64.0, 1000, "auto")


def test_reasoning_is_an_object_or_its_text() -> None:
    """The original's file has the object, its flag the text; both name all three."""
    given = {"start_thinking_token_id": 5, "end_thinking_token_id": 6, "thinking_ratio": 0.5}
    read = read_arguments({"reasoning": given}, 16)
    assert read.reasoning == (5, 6, 0.5)
    assert read_arguments({"engine": {"reasoning": json.dumps(given)}}, 16) == read


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"speedup_ration": 2}, "did you mean 'speedup_ratio'"),
        ({"speedup_ratio": -1}, "from 0"),
        ({"num_gpu_blocks": 1.5}, "whole number"),
        ({"enable_prefix_caching": 1}, "true or false"),
        ({"preemption_mode": "newest"}, "lifo or fifo"),
        ({"engine": []}, "object"),
        ({"num_gpu_blocks": 1}, "too small"),
        ({"is_prefill": 1.5}, "is_prefill' must be true or false"),
        ({"is_prefill": True, "disaggregation_mode": "decode"}, "several parts"),
        ({"disaggregation-mode": "both"}, "must be agg, prefill or decode"),
        ({"kv_transfer_bandwidth": -1}, "kv_transfer_bandwidth"),
        ({"kv_bytes_per_token": 1.5}, "kv_bytes_per_token"),
        ({"kv_cache_dtype": "int3"}, "one of auto"),
        ({"kv_transfer_timing_mode": "by_layer"}, "can only be 'full_prompt'"),
        ({"dynamo": {"handoff_session_timeout_ms": 0}}, "handoff_session_timeout_ms"),
        ({"dynamo": 3}, "'dynamo' must be an object"),
        ({"reasoning": {"thinking_ratio": 2}}, "reasoning'"),
        ({"reasoning": "{"}, "reasoning'"),
        ({"dp_size": 0}, "dp_size' must be a whole number from 1"),
        ({"data_parallel_size": 1.5}, "dp_size' must be a whole number"),
        ({"engine": {"backend": "sglang"}}, "backend' can only be 'vllm'"),
        ({"engine": {"timing_model": {"type": "table"}}}, "timing_model"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, object], words: str) -> None:
    """Each bad argument is refused with its name and what would do."""
    with pytest.raises(InvalidArgument, match=words):
        read_arguments(given, 16)
