"""Prompts with a suffix: the model's own tokens say what is what."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dynamo.llm.processing.infill import MARKERS, infilled
from dynamo.llm.tokenizer.tokenizer import Tokenizer
from dynamo.runtime.errors import InvalidArgument

BOS = 1


class Letters:
    """A tokenizer of letters, with one of the models' three markers, or none."""

    def __init__(self, markers: tuple[str, ...], bos: bool) -> None:
        self._ids = {text: 900 + at for at, text in enumerate(markers)}
        self._bos = [BOS] if bos else []

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [*(self._bos if add_special else []), *map(ord, text)]


def letters(markers: tuple[str, ...], bos: bool = False) -> Tokenizer:
    return cast("Tokenizer", cast("Any", Letters(markers, bos)))


@pytest.mark.parametrize("markers", MARKERS)
def test_each_family_has_the_prefix_first(markers: tuple[str, ...]) -> None:
    """PREFIX, the prompt, SUFFIX, what follows, MIDDLE."""
    assert infilled(letters(markers), "m", [97, 98], [99]) == [900, 97, 98, 901, 99, 902]


def test_a_begin_of_text_stays_at_the_beginning() -> None:
    """It stands before the first marker, and nowhere else."""
    tokenizer = letters(MARKERS[0], bos=True)
    assert infilled(tokenizer, "m", tokenizer.encode("a"), [99]) == [BOS, 900, 97, 901, 99, 902]
    assert infilled(tokenizer, "m", [97], [99]) == [900, 97, 901, 99, 902]


def test_a_model_without_such_tokens_is_named() -> None:
    """It would go on behind the suffix, as if that were the prompt."""
    with pytest.raises(InvalidArgument, match="suffix: the model 'm' has no tokens"):
        infilled(letters(MARKERS[0][:2]), "m", [97], [99])
