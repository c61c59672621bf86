"""`ChunkWriter` alone: the bytes of a chunk, and that it looks again when it is told that something has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dynamo.frontend.http.chunked_answer import ChunkWriter


def writer() -> tuple[ChunkWriter, Any, Any, list[bytes]]:
    cycle: Any = SimpleNamespace(
        chunked_encoding=True, response_complete=False, disconnected=False, keep_alive=True, transport=None,
        message_event=SimpleNamespace(set=lambda: None), on_response=lambda: None,
    )  # fmt: skip
    flow: Any = SimpleNamespace(write_paused=False)
    wrote = list[bytes]()
    return ChunkWriter(cycle, flow, wrote.append), cycle, flow, wrote


def test_bytes_of_a_chunk() -> None:
    """Its length in hexadecimal digits, the bytes, and for the last one the end of the answer."""
    chunks, cycle, _, wrote = writer()
    assert chunks.write(b"abc")
    assert chunks.write(b"x" * 5000)
    assert wrote == [b"3\r\nabc\r\n", b"1388\r\n%b\r\n" % (b"x" * 5000)]
    assert chunks.write(b"end", True)
    assert wrote[2] == b"3\r\nend\r\n0\r\n\r\n"
    assert cycle.response_complete


@pytest.mark.parametrize(
    ("at", "name"), [("flow", "write_paused"), ("cycle", "response_complete"), ("cycle", "disconnected")]
)
def test_what_has_changed_is_seen(at: str, name: str) -> None:
    """Nothing is written from the moment that it is told; once that is over, writing goes on by itself."""
    chunks, cycle, flow, wrote = writer()
    assert chunks.write(b"1")
    setattr(flow if at == "flow" else cycle, name, True)
    chunks.look_again()
    assert not chunks.write(b"2")
    assert not chunks.write(b"", True)
    setattr(flow if at == "flow" else cycle, name, False)
    assert chunks.write(b"3")
    assert wrote == [b"1\r\n1\r\n", b"1\r\n3\r\n"]


def test_an_answer_of_known_length_is_not_framed() -> None:
    """It is for `send`, which counts the bytes."""
    chunks, cycle, _, wrote = writer()
    for kind in (False, None):
        cycle.chunked_encoding = kind
        assert not chunks.write(b"1")
    assert wrote == []
