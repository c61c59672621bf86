"""NATS's wire protocol by itself: bytes in, messages out, however they are cut."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.transport.bus import Message
from dynamo.runtime.transport.nats_protocol import NatsProtocol


class FakeTransport:
    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Any) -> None:
        self.written += b"".join(parts)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


async def parse(pieces: list[bytes]) -> tuple[list[Message], list[str], FakeTransport]:
    got: list[Message] = []
    errors: list[str] = []
    transport: Any = FakeTransport()
    protocol = NatsProtocol({1: got.append}, errors.append, lambda _: None)
    protocol.connection_made(transport)
    for piece in pieces:
        protocol.data_received(piece)
    return got, errors, transport


STREAM = (
    b'INFO {"server_id": "x"}\r\n'
    b"MSG a.b 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG a.b 2 3\r\nxyz\r\n"
    b"MSG a.c 1 back.1 0\r\n\r\n"
    b"+OK\r\nPONG\r\n"
    b"HMSG back.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    b"HMSG back.1 1 back.2 22 25\r\nNATS/1.0\r\nfoo: bar\r\n\r\nabc\r\n"
    b"-ERR 'Permissions Violation'\r\n"
    b"MSG a.d 1 12\r\nMSG a 1 1\r\nx\r\n"
)
EXPECTED = [
    Message("a.b", b"hello"),
    Message("a.c", b"", "back.1"),
    Message("back.1", b"", "", True),
    Message("back.1", b"abc", "back.2"),
    Message("a.d", b"MSG a 1 1\r\nx"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_however_the_bytes_are_cut(cuts: list[int]) -> None:
    """The same messages come out, whatever pieces the network makes of the stream."""
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    got, errors, transport = asyncio.run(parse(pieces))
    assert got == EXPECTED
    assert errors == ["Permissions Violation"]
    assert transport.written == b"PONG\r\n"


@pytest.mark.parametrize(
    "data",
    [b"HELLO\r\n", b"MSG a\r\n", b"MSG a 1 x\r\n", b"MSG a b 1\r\nx\r\n", b"INFO {\r\n", b"x" * 70_000],
    ids=["unknown word", "short", "no size", "no number", "half JSON", "endless line"],
)
def test_nonsense_ends_the_connection(data: bytes) -> None:
    """Bytes that are not NATS's protocol: the connection is dropped, and made anew by the bus."""
    _, errors, transport = asyncio.run(parse([data]))
    assert len(errors) == 1
    assert transport.closed


def test_large_messages_in_small_pieces_are_not_copied_again_and_again() -> None:
    """A message of 1 MB in reads of 64 KB is put together once."""
    body = bytes(1 << 20)
    data = b"MSG a 1 %d\r\n%b\r\n" % (len(body), body)
    pieces = [data[i : i + 65536] for i in range(0, len(data), 65536)]
    got, _, _ = asyncio.run(parse([*pieces, b"MSG a 1 1\r\nx\r\n"]))
    assert [len(m.data) for m in got] == [1 << 20, 1]
