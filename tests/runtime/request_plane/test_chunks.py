"""Requests in pieces: split and put together, bounded and forgetful."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime import _chunks
from dynamo.runtime._chunks import Assembler, split
from dynamo.runtime._wire import Chunk, decode_call
from dynamo.runtime.errors import CapacityExceeded, InvalidArgument


def pieces(data: bytes, limit: int, stream: int = 1) -> list[Chunk]:
    found = [decode_call(part) for part in split(2**53 - 1, stream, data, limit)]
    return [chunk for chunk in found if isinstance(chunk, Chunk)]


@given(st.binary(min_size=1, max_size=2000), st.integers(_chunks.OVERHEAD + 1, 300), st.randoms())
def test_pieces_in_any_order_give_the_whole(data: bytes, limit: int, random: random.Random) -> None:
    """Whatever the order and the repeats, the last missing piece completes the request."""
    encoded = split(2**53 - 1, 7, data, limit)
    assert all(len(part) <= limit for part in encoded)
    chunks = pieces(data, limit)
    random.shuffle(chunks)
    assembler = Assembler()
    results = [assembler.add(chunk, 0.0) for chunk in [*chunks[:-1], *chunks[:-1], chunks[-1]]]
    assert results[-1] == data
    assert all(result is None for result in results[:-1])
    assert assembler.size == 0


def test_incomplete_requests_are_dropped() -> None:
    """After ten seconds without all pieces, what came is forgotten."""
    first, *others = pieces(bytes(500), 164)
    assembler = Assembler()
    assembler.add(first, 0.0)
    assembler.expire(9.9)
    assert assembler.size == 100
    assembler.expire(10.0)
    assert assembler.size == 0
    assert [assembler.add(chunk, 10.0) for chunk in others] == [None] * len(others)


def test_bytes_are_bounded() -> None:
    """A client can't make a worker hold more than the limit; the request that tried is forgotten."""
    assembler = Assembler(max_bytes=150)
    first, second, *_ = pieces(bytes(500), 164)
    assembler.add(first, 0.0)
    with pytest.raises(CapacityExceeded):
        assembler.add(second, 0.0)
    assert assembler.size == 0


def test_open_requests_are_bounded() -> None:
    """Nor more unfinished requests than the limit."""
    assembler = Assembler(max_requests=2)
    for stream in (1, 2):
        assembler.add(pieces(bytes(500), 164, stream)[0], 0.0)
    with pytest.raises(CapacityExceeded):
        assembler.add(pieces(bytes(500), 164, 3)[0], 0.0)


@pytest.mark.parametrize(
    "chunk",
    [Chunk(1, 1, 0, 0, b""), Chunk(1, 1, -1, 2, b""), Chunk(1, 1, 2, 2, b"x"), Chunk(1, 1, 0, -5, b"x")],
    ids=["none", "negative", "beyond", "negative count"],
)
def test_nonsense_is_refused(chunk: Chunk) -> None:
    """Pieces with impossible numbers are the caller's mistake."""
    with pytest.raises(InvalidArgument):
        Assembler().add(chunk, 0.0)


def test_pieces_that_disagree_are_refused() -> None:
    """Two pieces of one request must name the same count."""
    assembler = Assembler()
    assembler.add(Chunk(1, 1, 0, 3, b"x"), 0.0)
    with pytest.raises(InvalidArgument):
        assembler.add(Chunk(1, 1, 1, 2, b"x"), 0.0)
    assert assembler.size == 0


def test_a_limit_without_room() -> None:
    """A bus with a tiny limit is refused in words."""
    with pytest.raises(InvalidArgument, match="limit of 64"):
        split(1, 1, b"x", 64)
