"""One rank's cache in an engine's words and in ours: names are the router's own, changes net, doubts bounded."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from dynamo.llm.kv.block_hash import block_hashes, seed_of, sequence_hashes
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.engine_blocks import Cleared, EngineBlocks, EngineHash, Removed, Stored, steps_of

BLOCK = 4
PROMPT = list(range(16))


def names(tokens: list[int], seed: int | None = None, **more: Any) -> list[int]:
    """What a router calls the beginnings of a prompt."""
    return sequence_hashes(block_hashes(tokens, BLOCK, seed=seed_of() if seed is None else seed, **more))


def stored(hashes: list[EngineHash], tokens: list[int], parent: EngineHash | None = None, **more: Any) -> Stored:
    return Stored(hashes, parent, tokens, BLOCK, **more)


def test_names_are_the_routers() -> None:
    """However the engine cuts what it says, and whatever its hashes are."""
    blocks = EngineBlocks(BLOCK)
    (first,) = steps_of([stored([b"a", b"b"], PROMPT[:8])], blocks)
    (second,) = steps_of([stored([-1], PROMPT[8:12], parent=b"b")], blocks, dp_rank=3)
    (third,) = steps_of([stored([7], PROMPT[12:], parent=(1 << 64) - 1)], blocks)  # -1, by another name
    assert [*first.stored, *second.stored, *third.stored] == names(PROMPT)
    assert (first.dp_rank, second.dp_rank) == (0, 3)
    (gone,) = steps_of([Removed([7, b"unknown"])], blocks)
    assert gone == KvStep([], names(PROMPT)[3:])
    assert blocks.hashes() == set(names(PROMPT)[:3])
    assert steps_of([Removed([7])], blocks) == []


def test_adapters_salts_and_media_are_inherited() -> None:
    """What follows a block needs no word of its adapter and salt: the parent's count."""
    blocks = EngineBlocks(BLOCK)
    seed = seed_of("a", "ns")
    blocks.apply(stored([1], PROMPT[:4], lora_name="a", salt="ns"))
    blocks.apply(stored([2], PROMPT[4:8], parent=1))
    assert blocks.hashes() == set(names(PROMPT[:8], seed))
    blocks.apply(stored([3], PROMPT[:4], media=[[9, 5]]))
    assert set(names(PROMPT[:4], media=[[5, 9]])) < blocks.hashes()


def test_changes_are_net() -> None:
    """What comes and goes in one step is not said; what goes and comes again neither."""
    blocks = EngineBlocks(BLOCK)
    assert steps_of([stored([1], PROMPT[:4]), Removed([1])], blocks) == []
    steps_of([stored([1], PROMPT[:4])], blocks)
    assert steps_of([Removed([1]), stored([2], PROMPT[:4])], blocks) == []
    (step,) = steps_of([stored([3], PROMPT[4:8]), Cleared(), stored([4], PROMPT[8:12])], blocks)
    assert step == KvStep(names(PROMPT[8:12]), [], 0, cleared=True)


def test_a_block_with_copies_goes_with_the_last() -> None:
    """vLLM says so for each copy of a block that requests beside each other computed."""
    blocks = EngineBlocks(BLOCK)
    steps_of([stored([1], PROMPT[:4]), stored([1], PROMPT[:4])], blocks)
    assert steps_of([Removed([1])], blocks) == []
    assert steps_of([Removed([1])], blocks) == [KvStep([], names(PROMPT[:4]))]


def test_a_hash_that_is_used_again_has_its_new_content() -> None:
    blocks = EngineBlocks(BLOCK)
    steps_of([stored([1], PROMPT[:4])], blocks)
    assert steps_of([stored([1], PROMPT[4:8])], blocks) == [KvStep(names(PROMPT[4:8]), names(PROMPT[:4]))]
    assert steps_of([Removed([1])], blocks) == [KvStep([], names(PROMPT[4:8]))]


def test_what_has_no_name_is_counted() -> None:
    """An unknown parent, another block size, fewer tokens than blocks: left out, and the children too."""
    blocks = EngineBlocks(BLOCK)
    steps = steps_of(
        [
            stored([1, 2], PROMPT[:8], parent=99),
            Stored([3], None, PROMPT, 16),
            stored([4, 5], PROMPT[:4]),
            stored([6], PROMPT[:4], parent=3),
        ],
        blocks,
    )
    assert (steps, blocks.orphans, blocks.misfits, len(blocks)) == ([], 3, 3, 0)
    with pytest.raises(ValueError, match="token id"):
        blocks.apply(stored([1], [1, 2, 3, -4]))


def test_after_a_loss_old_copies_are_not_believed() -> None:
    """A removal that was missed must not keep a block for ever once it is stored and removed again."""
    blocks = EngineBlocks(BLOCK)
    steps_of([stored([1, 2], PROMPT[:8])], blocks)
    blocks.doubt()  # the removal of 2 was in what was lost
    assert steps_of([stored([2], PROMPT[4:8], parent=1)], blocks) == []
    assert steps_of([Removed([2])], blocks) == [KvStep([], names(PROMPT)[1:2])]


def test_after_a_loss_a_rank_never_holds_more_than_it_can() -> None:
    """What may have gone unheard is dropped, oldest first, as the cache is seen to fill up."""
    blocks = EngineBlocks(BLOCK, capacity=3)
    first, second = PROMPT[:8], list(range(100, 108))
    steps_of([stored([1, 2], first)], blocks)
    blocks.doubt()
    (step,) = steps_of([stored([3, 4], second)], blocks)
    assert (step.stored, step.removed) == (names(second), names(first)[:1])
    assert blocks.hashes() == {*names(second), names(first)[1]}


def test_it_follows_a_cache_of_any_fate() -> None:
    """Ten thousand events of a made-up engine: the steps, replayed, are its cache; so is `names`."""
    random, blocks, heard, held = Random(3), EngineBlocks(BLOCK), set[int](), dict[int, list[int]]()
    for _ in range(3000):
        events: list[Any] = []
        for _ in range(random.randrange(1, 5)):
            if held and random.random() < 0.4:
                gone = random.choice(list(held))
                del held[gone]
                events.append(Removed([gone]))
            else:
                parent = random.choice([None, *held])
                tokens = [] if parent is None else held[parent]
                tokens = [*tokens, *(random.randrange(3) for _ in range(BLOCK))]
                key = hash(tuple(tokens)) & ((1 << 60) - 1)
                if key not in held:
                    held[key] = tokens
                    events.append(stored([key], tokens[-BLOCK:], parent))
        for step in steps_of(events, blocks):
            assert not set(step.stored) & set(step.removed)
            heard = (heard - set(step.removed)) | set(step.stored)
        assert heard == blocks.hashes()
    assert heard == {names(tokens)[-1] for tokens in held.values()}
    assert blocks.orphans == 0
