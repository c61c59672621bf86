"""What is sent when: traces in Mooncake's format, one JSON object a line.

`timestamp` (milliseconds), `input_length`, `output_length` (tokens) and `hash_ids`, one for each block of the prompt,
also where the last is not whole. Equal ids at equal places are equal tokens. Beyond Mooncake's, as aiperf has it:
a line with a `delay` is sent so many milliseconds after the end of the one before it with the same `session_id`.
Our own: `output_hash_ids` name the answer's blocks after the prompt's last, so that a later prompt can hold the answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec

MOONCAKE_BLOCK: Final = 512
_NS_PER_MS: Final = 1_000_000
_LAST: Final = 1e13
"""Milliseconds: later than any clock's, so that traces with the time of day can be read."""
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=_LAST)]


class TraceError(Exception):
    """A trace that can't be used; the text says where and why."""


class TraceLine(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of a trace."""

    timestamp: _Time | None = None
    input_length: _Count
    output_length: _Count
    hash_ids: list[_Id]
    session_id: str | int | None = None
    delay: _Time | None = None
    output_hash_ids: list[_Id] | None = None
    """None: the answer is never seen again."""


class Call(msgspec.Struct, gc=False):
    """One request: sent at `at`, or, where that is None, `delay` after the end of the one that names it `next`."""

    at: int | None
    """Nanoseconds."""
    delay: int
    """Nanoseconds."""
    tokens_in: int
    tokens_out: int
    ids: Sequence[int]
    output_ids: Sequence[int] | None = None
    next: int = -1
    """The number of the next one of its session."""


def read_trace(file: Path, block: int, limit: int | None = None) -> list[Call]:
    """Read the calls of a trace with `block` tokens to a hash id, the first `limit` of them; raises `TraceError`."""
    try:
        with file.open("rb") as lines:
            return calls(parse(lines, block, str(file)), limit)
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from None


def parse(lines: Iterable[bytes], block: int, name: str) -> Iterator[TraceLine]:
    """Read lines one by one; raises `TraceError` naming the line and what is wrong with it.

    Blank ones are passed over.
    """
    decode = msgspec.json.Decoder(TraceLine).decode
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceError(f"{name}, line {number}: {error}") from None
        if (wrong := _wrong(line, block)) is not None:
            raise TraceError(f"{name}, line {number}: {wrong}")
        yield line


def _wrong(line: TraceLine, block: int) -> str | None:
    needed = -(-line.input_length // block)
    if len(line.hash_ids) != needed:
        return (
            f"hash_ids has {len(line.hash_ids)} entries, but {line.input_length} tokens are {needed} blocks of {block}"
            " (--trace-block-size says how many tokens one id stands for)"
        )
    if line.timestamp is None and (line.session_id is None or line.delay is None):
        return "there is neither a timestamp nor a session_id with a delay, so nobody knows when to send it"
    return None


def calls(lines: Iterable[TraceLine], limit: int | None = None) -> list[Call]:
    """Make lines calls, sessions chained; raises `TraceError` where there is none."""
    calls: list[Call] = []
    last: dict[str | int, int] = {}
    for line in islice(lines, limit):
        delay = round((line.delay or 0) * _NS_PER_MS)
        at = delay if line.timestamp is None else round(line.timestamp * _NS_PER_MS)
        before = None
        if line.session_id is not None:
            before = last.get(line.session_id)
            last[line.session_id] = len(calls)
        chained = before is not None and line.delay is not None
        if before is not None and chained:
            calls[before].next = len(calls)
        calls.append(
            Call(
                None if chained else at, delay, line.input_length, line.output_length,
                array("I", line.hash_ids), None if line.output_hash_ids is None else array("I", line.output_hash_ids),
            )
        )  # fmt: skip
    if not calls:
        raise TraceError("the trace is empty")
    return calls


def write_trace(file: Path, lines: Iterable[TraceLine]) -> int:
    """Write lines; how many there were. Raises `TraceError`."""
    encode, count = msgspec.json.Encoder().encode, 0
    try:
        with file.open("wb") as sink:
            for line in lines:
                sink.write(encode(line) + b"\n")
                count += 1
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from None
    return count
