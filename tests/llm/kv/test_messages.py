"""The worker's half of KV events: bytes that other versions must read, numbers, snapshots in parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynamo.llm.kv.messages import VERSION, KvStep, Part, Sender, Step, decode_step, pack, unpack
from dynamo.runtime.errors import InvalidArgument

LIMIT = 1 << 20
WORKER = 0x1FFFFFFFFFFFFF


def listened() -> Sender:
    sender = Sender()
    sender.snapshot([0, 0], LIMIT)
    return sender


def names_in(part: Part) -> dict[int, list[int]]:
    return {rank: list(unpack(names)) for rank, names in part.ranks}


def test_the_bytes_of_a_step() -> None:
    """Positions are the contract: these bytes must be read by every later version."""
    (data,) = listened().step(KvStep([1, 2**64 - 1], [0x0102030405060708], 3), WORKER, LIMIT)
    assert data.hex() == (
        "98" "01" "cf001fffffffffffff" "01" "c2" "03" "c410" "0100000000000000" "ffffffffffffffff"
        "c408" "0807060504030201" "c2"
    )  # fmt: skip
    decoded = decode_step(data)
    assert (decoded.version, decoded.worker, decoded.seq, decoded.beat, decoded.dp_rank) == (
        VERSION,
        WORKER,
        1,
        False,
        3,
    )
    assert list(unpack(decoded.stored)) == [1, 2**64 - 1]


def test_the_bytes_of_a_beat_and_of_a_part() -> None:
    """A beat repeats the last number; a part says until which it is right."""
    sender = listened()
    sender.step(KvStep([7]), 5, LIMIT)
    assert sender.beat(5).hex() == "98" "01" "05" "01" "c3" "00" "c400" "c400" "c2"  # fmt: skip
    part = msgspec.msgpack.encode(sender.snapshot([0, 0], LIMIT))
    assert part.hex() == "95" "01" "01" "00" "01" "91" "92" "00" "c408" "0700000000000000"  # fmt: skip


def test_newer_and_older_writers_are_read() -> None:
    """Fields that a reader doesn't know are ignored, those that a writer leaves away have their defaults."""
    assert decode_step(msgspec.msgpack.encode([1, 5, 9, False, 0, b"", b"", False, "new"])).seq == 9
    assert decode_step(msgspec.msgpack.encode([1, 5, 9])) == Step(1, 5, 9)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode([1, 5]), msgspec.msgpack.encode([1, "x", 9])])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        decode_step(data)


def test_half_a_name_is_refused() -> None:
    assert list(unpack(pack([3, 4]))) == [3, 4]
    with pytest.raises(ValueError, match="multiple"):
        unpack(b"1234567")


def test_nothing_is_sent_before_somebody_can_use_it() -> None:
    """Without a snapshot no step is of use; the first one that is asked for has what came before."""
    sender = Sender()
    assert sender.step(KvStep([1, 2]), 5, LIMIT) == []
    assert sender.step(KvStep([3], [1]), 5, LIMIT) == []
    assert names_in(sender.snapshot([0, 0], LIMIT)) == {0: [2, 3]}
    (data,) = sender.step(KvStep([4]), 5, LIMIT)
    assert decode_step(data).seq == 1


def test_a_step_over_the_limit_is_several_messages() -> None:
    """Numbered on, each within the limit, removals first; together they are the step."""
    sender = listened()
    limit = 256 + 8 * 100
    messages = sender.step(KvStep(range(1000, 1950), range(250), 1, cleared=True), 5, limit)
    steps = [decode_step(data) for data in messages]
    assert max(map(len, messages)) <= limit
    assert [step.seq for step in steps] == list(range(1, len(steps) + 1))
    assert [step.cleared for step in steps] == [True] + [False] * (len(steps) - 1)
    assert [name for step in steps for name in unpack(step.removed)] == list(range(250))
    assert [name for step in steps for name in unpack(step.stored)] == list(range(1000, 1950))
    assert not any(step.removed for step in steps[3:])


def test_a_snapshot_over_the_limit_is_several_parts() -> None:
    """Each block is in exactly one part, each part within the limit, and it may grow a little meanwhile."""
    sender = Sender()
    sender.step(KvStep([n * 0x9E3779B97F4A7C15 % 2**64 for n in range(5000)]), 5, LIMIT)
    sender.step(KvStep([n * 0x9E3779B97F4A7C15 % 2**64 for n in range(3000)], dp_rank=1), 5, LIMIT)
    limit = 8192
    first = sender.snapshot([0, 0], limit)
    parts = [first, *(sender.snapshot([i, first.parts], limit) for i in range(1, first.parts))]
    assert first.parts >= 8
    assert max(len(msgspec.msgpack.encode(part)) for part in parts) <= limit
    for rank, count in ((0, 5000), (1, 3000)):
        names = [name for part in parts for name in names_in(part)[rank]]
        assert (len(names), len(set(names))) == (count, count)


@pytest.mark.parametrize("body", [None, [], [1], [0, 0, 0], ["a", 1], [1, 1], [-1, 2], [0, -1], [0, 1 << 40], [1, 0]])
def test_what_is_no_question_is_refused(body: Any) -> None:
    with pytest.raises(InvalidArgument):
        Sender().snapshot(body, LIMIT)
