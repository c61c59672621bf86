"""KV events: what a worker says of its cache, as bytes, and the worker's half of the protocol. Pure.

A worker numbers its messages: one `Step` for what an engine step did to the cache of one rank (several where
that is over the bus's limit), on `dyn.<ns>.kv.<component>.<id>`. A `beat` repeats the last number, so that the
loss of a last message shows. Who has missed something asks the control operation `kv_snapshot` for `Part`s,
each with the number up to which it is right. `kv_events/reader.py` is the reader's half; docs/design/serving/kv.md says
why.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.runtime.errors import InvalidArgument

VERSION: Final = 1
OPERATION: Final = "kv_snapshot"
"""The control operation's name: body `[part, parts]` (`parts` 0: the worker says how many), answer a `Part`."""
HASH_BYTES: Final = 8
OVERHEAD: Final = 256
"""More than a message needs beside the hashes in it."""
SLACK: Final = 0.8
"""How full a part is made of what a message may hold: it may grow before it is asked for."""
MOST_PARTS: Final = 1 << 16


class KvStep(NamedTuple):
    """Step of an engine: what it did to the cache of one rank, by sequence hashes (64 bits)."""

    stored: Sequence[int]
    removed: Sequence[int] = ()
    dp_rank: int = 0
    cleared: bool = False
    """Before all of that, everything that was there went."""


class Step(msgspec.Struct, array_like=True, gc=False):
    """One message. Names are packed: 8 bytes each, little-endian."""

    version: int
    worker: int
    seq: int
    beat: bool = False
    """True: nothing new; `seq` repeats the last number."""
    dp_rank: int = 0
    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False


class Part(msgspec.Struct, array_like=True, gc=False):
    """The blocks with `block_hash % parts == part` of all ranks, as they were after message `seq`."""

    version: int
    seq: int
    part: int
    parts: int
    ranks: list[tuple[int, bytes]]
    """`(dp_rank, packed hashes)`."""


UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
_encode: Final = msgspec.msgpack.Encoder().encode
decode_step: Final = msgspec.msgpack.Decoder(Step).decode
"""Raises `UNREADABLE`."""


def pack(hashes: Iterable[int]) -> bytes:
    """Pack hashes as they travel."""
    numbers = array("Q", hashes)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpack(data: bytes) -> Sequence[int]:
    """Read what `pack` wrote; raises `ValueError` for what isn't whole hashes."""
    numbers = array("Q", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Sender:
    """The worker's half: numbers, and what is cached, which it knows from the steps alone."""

    def __init__(self) -> None:
        self.seq = 0
        """The number of the last message."""
        self.listened = False
        """Somebody has asked for a snapshot: before that nobody could use a step, and none is sent."""
        self._ranks: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """Count the blocks of all ranks."""
        return sum(map(len, self._ranks.values()))

    def step(self, step: KvStep, worker: int, limit: int) -> list[bytes]:
        """Take a step in; the messages that say so, each of at most `limit` bytes."""
        hashes = self._ranks.setdefault(step.dp_rank, set())
        if step.cleared:
            hashes.clear()
        hashes.difference_update(step.removed)
        hashes.update(step.stored)
        if not self.listened:
            return []
        room = max(1, (limit - OVERHEAD) // HASH_BYTES)
        return [self._message(piece, worker) for piece in _pieces(step, room)]

    def beat(self, worker: int) -> bytes:
        """Return what to send now and then while nothing happens."""
        return _encode(Step(VERSION, worker, self.seq, beat=True))

    def snapshot(self, body: Any, limit: int) -> Part:
        """Answer `OPERATION`; raises `InvalidArgument` for a body that isn't `[part, parts]`."""
        part, parts = _asked(body)
        self.listened = True
        room = max(1, int((limit - OVERHEAD - 16 * len(self._ranks)) // HASH_BYTES * SLACK))
        parts = parts or max(1, -(-len(self) // room))
        ranks = [
            (rank, pack(hashes if parts == 1 else [block_hash for block_hash in hashes if block_hash % parts == part]))
            for rank, hashes in self._ranks.items()
        ]
        return Part(VERSION, self.seq, part, parts, ranks)

    def _message(self, step: KvStep, worker: int) -> bytes:
        self.seq += 1
        return _encode(
            Step(VERSION, worker, self.seq, False, step.dp_rank, pack(step.stored), pack(step.removed), step.cleared)
        )


def _pieces(step: KvStep, room: int) -> Iterator[KvStep]:
    """Yield the step in steps of at most `room` hashes, removals first."""
    if len(step.stored) + len(step.removed) <= room:
        yield step
        return
    cleared = step.cleared
    for at in range(0, len(step.removed), room):
        yield KvStep((), step.removed[at : at + room], step.dp_rank, cleared)
        cleared = False
    for at in range(0, len(step.stored), room):
        yield KvStep(step.stored[at : at + room], (), step.dp_rank, cleared)
        cleared = False


def _asked(body: Any) -> tuple[int, int]:
    try:
        part, parts = msgspec.convert(body, tuple[int, int])
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the operation {OPERATION!r} needs [part, parts]") from error
    if not (0 <= parts <= MOST_PARTS and 0 <= part < max(1, parts)):
        raise InvalidArgument(f"there is no part {part} of {parts}")
    return part, parts
