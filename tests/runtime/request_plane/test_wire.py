"""The bytes of every message, pinned: a change here is a change of protocol and needs a new version."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.runtime.request_plane import wire
from dynamo.runtime.request_plane.wire import (
    Chunk,
    Control,
    ControlReply,
    Item,
    Pong,
    Rejection,
    Request,
    StepFrame,
    encoder,
)

RAW = msgspec.Raw(encoder.encode({"a": 1}))

GOLDEN: list[tuple[Any, str]] = [
    (Request(1, 2, 3, "r", 4, {"k": "v"}, RAW), "99a171010203a17204" + "81a16ba176" + "81a16101" + "c400"),
    (Chunk(2, 3, 0, 2, b"xy"), "96a16b02030002c4027879"),
    (Rejection(3, "draining", "bye"), "94a17803a8647261696e696e67a3627965"),
    (Item(3, [1, 2], 1), "9303" + "920102" + "01"),
    (StepFrame(1, 2, 3, [4], [Item(4, "t")], False), "96010203" + "9104" + "919304a17400" + "c2"),
    (StepFrame(1, 2, 3, [], [], True), "960102039090c3"),
    (Control(1, 2, "ping"), "940102a470696e67c0"),
    (ControlReply(), "93a0a0c0"),
    (ControlReply("full", "no", RAW), "93a466756c6ca26e6f81a16101"),
    (Pong(7, [3]), "92079103"),
]


@pytest.mark.parametrize(
    ("message", "expected"), GOLDEN, ids=lambda v: type(v).__name__ if not isinstance(v, str) else ""
)
def test_golden_bytes(message: Any, expected: str) -> None:
    """Each message encodes to exactly these bytes and reads back equal."""
    data = encoder.encode(message)
    assert data.hex() == expected
    assert msgspec.msgpack.decode(data, type=type(message)) == message


def test_items_may_be_short() -> None:
    """The worker leaves trailing fields of an item away; `end` is then "more to come"."""
    data = encoder.encode([1, 2, 3, [], [(4, "x"), (4, None, 1)]])
    frame = wire.decode_frame(data)
    assert [(i.stream, i.data, i.end) for i in frame.items] == [(4, "x", wire.MORE), (4, None, wire.DONE)]
    assert frame.heartbeat is False


@pytest.mark.parametrize(("message", "_"), GOLDEN, ids=lambda v: type(v).__name__ if not isinstance(v, str) else "")
def test_unknown_trailing_fields_are_ignored(message: Any, _: str) -> None:
    """A newer sender may append fields; an older reader does not mind."""
    fields = msgspec.msgpack.decode(encoder.encode(message))
    assert msgspec.msgpack.decode(encoder.encode([*fields, "new", 7]), type=type(message)) == message


def test_version_of_an_unreadable_request() -> None:
    """The version can be read even where the rest has another shape."""
    assert wire.version_of(encoder.encode(["q", 9, {"all": "new"}])) == 9
    assert wire.version_of(b"\xc1garbage") is None
    assert wire.version_of(encoder.encode({"q": 1})) is None
