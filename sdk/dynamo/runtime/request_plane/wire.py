"""The messages between processes, as bytes: the only module that knows their layout.

msgspec msgpack. Messages that travel per token are arrays (positions are the
contract, new fields go to the end); unknown trailing fields are ignored by older
readers. `tests/runtime/request_plane/test_wire.py` pins the bytes. What each message means and
when it is sent is written in `docs/design/serving/protocol.md`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dynamo.runtime.errors import DynamoException, EngineError, from_code

VERSION: Final = 1
HEARTBEAT: Final = 0.25
"""Seconds between two frames of a worker at most, while the client has streams there."""

MORE: Final = 0
"""`Item.end`: the stream goes on."""
DONE: Final = 1
"""`Item.end`: the last item of a stream that ended well."""
FAILED: Final = 2
"""`Item.end`: the stream failed; `data` is `[code, message]`."""


class Request(msgspec.Struct, array_like=True, tag="q", gc=False):
    """One request, on `dyn.<ns>.ep.<component>.<endpoint>.<id>.req`."""

    version: int
    client: int
    stream: int
    request_id: str
    deadline_ms: int
    """Milliseconds left when it was sent; 0: no deadline."""
    metadata: dict[str, str]
    payload: msgspec.Raw
    offer: bytes = b""
    """Where the client takes frames directly, and a secret: see `direct_frames`; empty: over the bus."""


class Chunk(msgspec.Struct, array_like=True, tag="k", gc=False):
    """A numbered part of an encoded `Request` that is larger than the server's `max_payload`."""

    client: int
    stream: int
    index: int
    count: int
    data: bytes


class Rejection(msgspec.Struct, array_like=True, tag="x", gc=False):
    """The answer to one request that was not accepted, on its reply subject."""

    stream: int
    code: str
    message: str


class Item(msgspec.Struct, array_like=True, gc=False):
    """Item that one engine step adds to one stream. `data` is the endpoint's own."""

    stream: int
    data: Any = None
    end: int = MORE


class StepFrame(msgspec.Struct, array_like=True, gc=False):
    """Frame of all that one step of one worker has for one client, on `dyn.<ns>.in.<client>.s`."""

    version: int
    worker: int
    seq: int
    accepted: list[int]
    items: list[Item]
    heartbeat: bool = False
    """True: nothing new; `seq` repeats the last number sent."""


class Hello(msgspec.Struct, array_like=True, tag="h", gc=False):
    """The first frame of a direct stream: which worker it is of; the answer is the client's own proof."""

    version: int
    worker: int
    sent: int
    """The number of its last frame for this client when the offer came."""
    proof: bytes


class Control(msgspec.Struct, array_like=True, gc=False):
    """A question to an instance, on `….ctl`: `ping`, `cancel` or an operation that it registered."""

    version: int
    client: int
    op: str
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


class ControlReply(msgspec.Struct, array_like=True, gc=False):
    """The answer to a `Control`; `code` is empty where it went well."""

    code: str = ""
    message: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\xc0")


class Pong(msgspec.Struct, array_like=True, gc=False):
    """The answer to `ping`: what the instance knows of the client that asks."""

    seq: int
    """The number of the last frame for it; 0: there was none."""
    streams: list[int]
    """The streams that are open for it."""


PING: Final = "ping"
CANCEL: Final = "cancel"
"""`Control.op` with a list of streams as body; nobody answers it."""

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What the decoders raise; msgspec lets the standard library's errors for broken text through."""

encoder: Final = msgspec.msgpack.Encoder()
decode_call: Final = msgspec.msgpack.Decoder(Request | Chunk).decode
decode_rejection: Final = msgspec.msgpack.Decoder(Rejection).decode
decode_frame: Final = msgspec.msgpack.Decoder(StepFrame).decode
decode_hello: Final = msgspec.msgpack.Decoder(Hello).decode
decode_control: Final = msgspec.msgpack.Decoder(Control).decode
decode_pong: Final = msgspec.msgpack.Decoder(Pong).decode
decode_control_reply: Final = msgspec.msgpack.Decoder(ControlReply).decode


def version_of(data: bytes) -> int | None:
    """Return the protocol version that an unreadable request names, where it still says so; else None."""
    try:
        parts = msgspec.msgpack.decode(data)
    except UNREADABLE:
        return None
    if isinstance(parts, list) and len(parts) > 1 and parts[0] == "q" and isinstance(parts[1], int):
        return parts[1]
    return None


def decode_failure(data: Any) -> DynamoException:
    """Return the error with which a worker ended a stream."""
    if isinstance(data, list) and len(data) == 2 and all(isinstance(part, str) for part in data):
        return from_code(data[0], data[1])
    return EngineError("the worker reported a failure without saying which")
