"""The mock engine's pure parts: formulas, blocks that are never lost, sequences that always end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.mock.arguments import read_arguments
from dynamo.worker.engines.mock.kv import BlockPool, extend_hashes
from dynamo.worker.engines.mock.scheduler import Limits, Scheduler, Sequence
from dynamo.worker.engines.mock.timing import Timing, decode_ms, prefill_ms


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


def test_equal_prefixes_share_blocks() -> None:
    """Hashes chain: equal prefixes give equal hashes, one different token changes all that follow."""
    first = extend_hashes(0, list(range(64)), 16)
    other = extend_hashes(0, [*range(32), 99, *range(33, 64)], 16)
    assert first[:2] == other[:2]
    assert not set(first[2:]) & set(other[2:])
    assert extend_hashes(first[1], list(range(32, 70)), 16) == first[2:]


def test_pool_evicts_the_least_recently_used() -> None:
    """A full pool drops the inactive block that was released first, and never an active one."""
    pool = BlockPool(2)
    assert pool.take(1)
    assert pool.take(2)
    assert not pool.take(3)
    pool.release([1, 2], partial=False)
    assert pool.match([1, 2]) == 2
    assert pool.take(3)  # 2 was let go before 1
    assert pool.match([1]) == 1
    assert pool.match([2]) == 0
    assert (pool.used, pool.cached) == (1, 1)


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
    for _ in range(5000):
        if not left:
            break
        plan = scheduler.plan()
        assert plan.producing or plan.prefill_tokens
        assert scheduler.pool.used <= blocks
        for sequence in plan.producing:
            if sequence.running:
                left[sequence] -= 1
                if left[sequence]:
                    scheduler.advance(sequence, 5)
                else:
                    scheduler.remove(sequence)
                    del left[sequence]
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
        ({"dp_size": 2}, "dp_size' can only be 1"),
        ({"engine": {"backend": "sglang"}}, "backend' can only be 'vllm'"),
        ({"engine": {"timing_model": {"type": "table"}}}, "timing_model"),
    ],
)
def test_bad_arguments_are_named(given: dict[str, object], words: str) -> None:
    """Each bad argument is refused with its name and what would do."""
    with pytest.raises(InvalidArgument, match=words):
        read_arguments(given, 16)
