"""Names of blocks equal NVIDIA Dynamo's, for every kind of request; the numbers were read off ai-dynamo 1.6.1."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.kv.block_hash import block_hashes, seed_of, sequence_hashes

TOKENS = list(range(32))


def test_plain_blocks_and_their_chain() -> None:
    """Tokens 0 to 31 in blocks of 16, and the name of both together."""
    blocks = block_hashes(TOKENS, 16)
    assert blocks == [15310707395893867146, 15292316782987903195]
    assert sequence_hashes(blocks) == [15310707395893867146, 13769157705258532664]


def test_media_adapter_namespace_and_eagle() -> None:
    """Whatever makes a cache entry another one makes another name."""
    assert block_hashes(TOKENS, 16, media=[[0xDEADBEEF]])[0] == 10080518416733111448
    assert block_hashes(TOKENS, 16, seed=seed_of("a")) == [13515555613885636154, 1984712202812830800]
    assert block_hashes(TOKENS, 16, seed=seed_of(cache_namespace="ns")) == [14456718079074535195, 6215220757240946953]
    assert block_hashes(range(33), 16, eagle=True) == [11423441316381344367, 6554946393898374776]


def test_an_empty_name_is_none() -> None:
    assert seed_of("", "") == seed_of()
    assert seed_of("a", "ns") != seed_of("ns", "a")


def test_the_order_of_a_blocks_media_does_not_count() -> None:
    once = block_hashes(TOKENS, 16, media=[[7, 9], []])
    assert once == block_hashes(TOKENS, 16, media=[[9, 7]])
    assert once[1] == block_hashes(TOKENS, 16)[1]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=100), st.integers(1, 20), st.integers(0, 100))
def test_only_whole_blocks_have_names(tokens: list[int], size: int, cut: int) -> None:
    """A prompt's names begin with those of any beginning of it, and what is no whole block has none."""
    names = sequence_hashes(block_hashes(tokens, size))
    assert len(names) == len(tokens) // size
    shorter = tokens[:cut]
    assert sequence_hashes(block_hashes(shorter, size)) == names[: len(shorter) // size]
    assert len(block_hashes(tokens, size, eagle=True)) == max(0, len(tokens) - 1) // size


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(0, 30))
def test_a_chain_goes_on(blocks: list[int], cut: int) -> None:
    """Names of a continuation are those of the whole."""
    names = sequence_hashes(blocks)
    begun = names[:cut]
    assert begun + sequence_hashes(blocks[cut:], begun[-1] if begun else None) == names


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["1"]])
def test_what_is_no_token_id_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="token id"):
        block_hashes(tokens, 1)
    with pytest.raises(ValueError, match="at least one token"):
        block_hashes([], 0)
