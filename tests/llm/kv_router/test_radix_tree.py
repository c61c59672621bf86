"""`RadixTree` and `compute_block_hash_for_seq` under NVIDIA Dynamo's names; answers were read off ai-dynamo 1.6.1."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from dynamo.llm import OverlapScores, RadixTree, compute_block_hash_for_seq

TOKENS = list(range(40))


def event(data: Any, dp_rank: int = 0) -> bytes:
    return json.dumps({"event_id": 0, "data": data, "dp_rank": dp_rank}).encode()


def stored(parent: int | None, *blocks: tuple[int, int]) -> dict[str, Any]:
    return {
        "stored": {"parent_hash": parent, "blocks": [{"block_hash": h, "tokens_hash": t} for h, t in blocks]}
    }  # fmt: skip


def removed(*hashes: int) -> dict[str, Any]:
    return {"removed": {"block_hashes": list(hashes)}}


@pytest.mark.parametrize(
    ("arguments", "hashes"),
    [
        ({}, [15310707395893867146, 15292316782987903195]),
        ({"lora_name": "a", "cache_namespace": "ns"}, [4025636121219998579, 9568306055019296321]),
        (
            {"block_mm_infos": [{"mm_objects": [{"mm_hash": 0xDEADBEEF, "offsets": [[0, 4]]}]}, None]},
            [10080518416733111448, 15292316782987903195],
        ),
        (
            {"block_mm_infos": [{"mm_objects": [{"mm_hash": 7, "offsets": []}, {"mm_hash": 3, "offsets": []}]}]},
            [15943008471152903405, 15292316782987903195],
        ),
        ({"is_eagle": True}, [11423441316381344367, 6554946393898374776]),
    ],
    ids=["plain", "adapter and namespace", "an image", "two images", "eagle"],
)
def test_hashes_are_those_of_nvidia_dynamo(arguments: dict[str, Any], hashes: list[int]) -> None:
    """Every keyword of ai-dynamo 1.6.1; 40 tokens are two whole blocks."""
    assert compute_block_hash_for_seq(TOKENS, 16, **arguments) == hashes
    assert compute_block_hash_for_seq(TOKENS[:5], 16, **arguments) == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: compute_block_hash_for_seq(TOKENS, 0), "at least one token"),
        (lambda: compute_block_hash_for_seq([-1] * 16, 16), "token id"),
        (lambda: compute_block_hash_for_seq(TOKENS, 16, [{"mm_objects": [{"x": 1}]}]), "mm_hash"),
        (lambda: compute_block_hash_for_seq(TOKENS, 16, ["x"]), "block_mm_infos"),  # type: ignore[list-item]
        (lambda: RadixTree(expiration_duration_secs=3), "expiration_duration_secs"),
    ],
)
def test_bad_arguments_are_named(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def scores(tree: RadixTree, *sequence: int) -> dict[tuple[int, int], int]:
    matches = tree.find_matches(list(sequence))
    assert isinstance(matches, OverlapScores)
    assert matches.frequencies == []
    return matches.scores


def test_matches_are_those_of_nvidia_dynamo() -> None:
    """The same events in the same order gave these answers there, line by line."""
    tree = RadixTree()
    tree.apply_event(1, event(stored(None, (100, 1), (101, 2), (102, 3))))
    tree.apply_event(2, event(stored(None, (200, 1), (201, 2))))
    assert scores(tree, 1, 2, 3, 4) == {(1, 0): 3, (2, 0): 2}
    assert tree.find_matches([1, 2, 3, 4], early_exit=True).scores == {(1, 0): 3, (2, 0): 2}
    assert scores(tree) == {}
    assert scores(tree, 9) == {}
    with pytest.raises(RuntimeError, match=r"Failed to apply event: Failed to find parent block"):
        tree.apply_event(1, event(stored(102, (103, 4)), dp_rank=3))  # another rank's parent
    tree.apply_event(1, event(stored(102, (103, 4))))
    assert scores(tree, 1, 2, 3, 4) == {(1, 0): 4, (2, 0): 2}
    tree.apply_event(1, event(removed(101)))
    assert scores(tree, 1, 2, 3, 4) == {(1, 0): 1, (2, 0): 2}
    with pytest.raises(RuntimeError, match=r"Failed to apply event: Failed to find block"):
        tree.apply_event(1, event(removed(999)))
    tree.apply_event(2, event("cleared"))
    assert scores(tree, 1, 2) == {(1, 0): 1}
    tree.clear_all_blocks(1)
    assert scores(tree, 1) == {}
    for rank in (0, 1):
        tree.apply_event(1, event(stored(None, (100, 1)), dp_rank=rank))
    assert scores(tree, 1) == {(1, 0): 1, (1, 1): 1}
    tree.remove_worker(1)
    tree.remove_worker(99)
    assert scores(tree, 1) == {}
    assert tree.dump_tree_as_events() == []


def test_the_same_tokens_after_others_are_other_blocks() -> None:
    tree = RadixTree()
    tree.apply_event(1, event(stored(None, (1, 1), (2, 2))))
    tree.apply_event(1, event(stored(None, (3, 5), (4, 2))))
    assert scores(tree, 1, 2) == scores(tree, 5, 2) == {(1, 0): 2}
    assert scores(tree, 2) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"{", b'{"event_id": 1}', event("x"), event({}), event(stored(None, (-5, 2))),
        event(stored(None, (1 << 64, 2))), b"[" * 100_000, event(removed(1), dp_rank=-1),
    ],
)  # fmt: skip
def test_an_unreadable_event_is_refused(data: bytes) -> None:
    tree = RadixTree()
    with pytest.raises(ValueError, match="Failed to deserialize KvCacheEvent"):
        tree.apply_event(1, data)
    with pytest.raises(ValueError, match="64 bits"):
        tree.apply_event(-1, event("cleared"))


def test_a_dump_makes_the_same_tree() -> None:
    """Forks, several ranks, removals in the middle: the copy answers the same; its events are NVIDIA Dynamo's."""
    random, tree = Random(5), RadixTree()
    chains = [[random.randrange(4) for _ in range(random.randrange(1, 9))] for _ in range(60)]
    for chain in chains:
        worker, rank = random.randrange(3), random.randrange(2)
        blocks = [(hash((rank, *chain[: end + 1])) & ((1 << 63) - 1), chain[end]) for end in range(len(chain))]
        tree.apply_event(worker, event(stored(None, *blocks), rank))
        if random.random() < 0.3:
            tree.apply_event(worker, event(removed(random.choice(blocks)[0]), rank))
    copy = RadixTree()
    dumped = [json.loads(dump_tree_as_event) for dump_tree_as_event in tree.dump_tree_as_events()]
    assert dumped[0].keys() == {"worker_id", "storage_tier", "residency_domain", "event"}
    for entry in dumped:
        copy.apply_event(entry["worker_id"], json.dumps(entry["event"]).encode())
    assert any(scores(tree, *chain) for chain in chains)
    assert [scores(copy, *chain) for chain in chains] == [scores(tree, *chain) for chain in chains]
