"""`Cutter` and `SegmentCache` alone: short texts are split in one step, long ones place by place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.tokenizer.segment_cache import Cutter, Part, SegmentCache

TOKENS = {"<a>": 1, "<b>": 2, "<ab>": 3}
FILLER = "z" * 3000


@given(st.lists(st.sampled_from(["<a>", "<b>", "<ab>", "<", "a>", "text", "\n", "<a"]), max_size=12).map("".join))
@pytest.mark.parametrize("also", [(), ("text<",)])
def test_short_and_long_texts_are_cut_alike(also: Sequence[str], text: str) -> None:
    """The same parts, whichever way; joined, they are the text."""
    cut = Cutter(TOKENS, also)
    parts = cut(f"{text}\n<a>")
    assert cut(f"{text}\n<a>{FILLER}") == [*parts, FILLER]
    names: dict[tuple[int, ...], str] = {(number,): token for token, number in TOKENS.items()}
    assert "".join(part if isinstance(part, str) else names[tuple(part)] for part in parts) == f"{text}\n<a>"


def test_places_of_unknown_segments_are_told() -> None:
    """Known segments are replaced by their ids, special tokens stay."""
    cache = SegmentCache()
    cache.put("known", [7, 8])
    parts: list[Part] = ["known", (1,), "new", "known", "new"]
    assert cache.fill(parts) == [2, 4]
    assert parts == [(7, 8), (1,), "new", (7, 8), "new"]
    assert (cache.hits, cache.misses) == (2, 2)
