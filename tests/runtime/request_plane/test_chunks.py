"""Requests in pieces: split and put together, bounded and forgetful."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import CapacityExceeded, InvalidArgument
from dynamo.runtime.request_plane import chunks as _chunks
from dynamo.runtime.request_plane.chunks import Assembler, Shelf, split
from dynamo.runtime.request_plane.wire import Chunk, decode_call


def pieces(data: bytes, limit: int, stream: int = 1) -> list[Chunk]:
    results = [decode_call(part) for part in split(2**53 - 1, stream, data, limit)]
    return [chunk for chunk in results if isinstance(chunk, Chunk)]


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
    """After ten seconds without another piece, what came is forgotten."""
    first, *others = pieces(bytes(500), 164)
    assembler = Assembler()
    assembler.add(first, 0.0)
    assembler.expire(9.9)
    assert assembler.size == 100 + _chunks.PIECE_BYTES
    assembler.expire(10.0)
    assert assembler.size == 0
    assert [assembler.add(chunk, 10.0) for chunk in others] == [None] * len(others)


def test_bytes_are_bounded() -> None:
    """A client can't make a worker hold more than the limit; the request that tried is forgotten."""
    assembler = Assembler(max_bytes=150 + _chunks.PIECE_BYTES)
    first, second, *_ = pieces(bytes(500), 164)
    assembler.add(first, 0.0)
    with pytest.raises(CapacityExceeded):
        assembler.add(second, 0.0)
    assert assembler.size == 0


def test_pieces_that_come_slowly_have_an_end() -> None:
    """One every nine seconds keeps a request for two minutes, and no longer."""
    assembler = Assembler()
    for at in range(13):
        assembler.add(Chunk(1, 1, at, 1000, b"x"), 9.0 * at)
    assert assembler.size
    assembler.expire(_chunks.LONGEST)
    assert not assembler.size


def test_pieces_of_nothing_count() -> None:
    """Many tiny pieces cost more than their data."""
    assembler = Assembler(max_bytes=10 * _chunks.PIECE_BYTES)
    for at in range(10):
        assembler.add(Chunk(1, 1, at, 1000, b""), 0.0)
    with pytest.raises(CapacityExceeded):
        assembler.add(Chunk(1, 1, 10, 1000, b""), 0.0)


def test_all_clients_together_are_bounded() -> None:
    """What made-up clients may leave unfinished has one bound, and its room comes back."""
    shelf = Shelf(1500)
    clients = [Assembler(shelf=shelf) for _ in range(5)]
    full = 0
    for client in clients:
        try:
            client.add(pieces(bytes(500), 164)[0], 0.0)
        except CapacityExceeded:
            full += 1
    assert (full, shelf.used) == (1, 4 * (100 + _chunks.PIECE_BYTES))
    clients[0].clear()
    for client in clients:
        client.expire(60.0)
    assert shelf.used == 0


def test_open_requests_are_bounded() -> None:
    """Nor more unfinished requests than the limit."""
    assembler = Assembler(max_requests=2)
    for stream in (1, 2):
        assembler.add(pieces(bytes(500), 164, stream)[0], 0.0)
    with pytest.raises(CapacityExceeded):
        assembler.add(pieces(bytes(500), 164, 3)[0], 0.0)


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(1, 1, 0, 0, b""),
        Chunk(1, 1, -1, 2, b""),
        Chunk(1, 1, 2, 2, b"x"),
        Chunk(1, 1, 0, -5, b"x"),
        Chunk(1, 1, 0, 1 << 40, b"x"),
    ],
    ids=["none", "negative", "beyond", "negative count", "a huge count"],
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
