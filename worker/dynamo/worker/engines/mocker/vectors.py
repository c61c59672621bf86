"""Vectors that nobody computed: the same for the same tokens, of length 1, and unrelated for others. Pure."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

from dynamo.llm.processing.embeddings import check_dimensions, normalised, packed, shortened


def made_up(token_ids: Sequence[int], own: int, dimensions: int | None = None) -> bytes:
    """Return the vector of these tokens, of `own` numbers, or cut to `dimensions`.

    `InvalidArgument` where those are more.
    """
    check_dimensions(dimensions, own, cut=True)
    drawn = array("i")
    drawn.frombytes(hashlib.shake_128(_little(array("I", token_ids)).tobytes()).digest(own * drawn.itemsize))
    return shortened(packed(normalised(_little(drawn))), dimensions)


def _little(numbers: array[int]) -> array[int]:
    """Return the vector's numbers, the same on every machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
