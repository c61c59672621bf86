"""What prefill hands to decode, without a clock: sizes, times, what is kept, and blocks that are never lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import InvalidArgument, StreamIncomplete
from dynamo.worker.engines.mocker.kv_transfer_state import PARAMS, Kept, Link, bytes_per_token, room_name
from dynamo.worker.engines.mocker.kv_transfer_state import given as read_handover
from dynamo.worker.engines.mocker.scheduler import Limits, Scheduler, Sequence
from dynamo.worker.engines.mocker.stepper import Stepper, TextAnswer, Timing, decode_ms

LLAMA = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
PROMPT = list(range(40))
BLOCK = 4


# -- the pure parts


@pytest.mark.parametrize(
    ("config", "dtype", "size"),
    [
        (LLAMA, "auto", 131_072), (LLAMA, "fp8", 65_536), (LLAMA | {"head_dim": 64}, "auto", 65_536),
        ({"text_config": LLAMA, "torch_dtype": "float32"}, "auto", 131_072),
        ({**LLAMA, "num_key_value_heads": None}, "auto", 524_288),
        ({**LLAMA, "torch_dtype": "int3"}, "auto", None), ({}, "fp8", None),
        ({**LLAMA, "hidden_size": 0}, "auto", None),
    ],
)  # fmt: skip
def test_what_a_token_takes(config: dict[str, Any], dtype: str, size: int | None) -> None:
    """Layers, both of K and V, KV heads, their size, and bytes; None where something isn't said."""
    assert bytes_per_token(config, dtype) == size


def test_how_long_a_transfer_takes() -> None:
    """The whole prompt over the link: 8,192 tokens of 128 KiB at 64 GB/s; nothing over a free one."""
    assert Link().milliseconds(8192, 131_072) == pytest.approx(16.777216)
    assert Link(kv_transfer_bandwidth=0.0).milliseconds(8192, 131_072) == 0.0


class Desk:
    """What happens with a `Kept`, one line each: things are letters, people are capitals."""

    def __init__(self) -> None:
        self.kept: Kept[str, str] = Kept(10.0, 2.0)

    def do(self, now: float, line: str) -> str:
        kept, (word, *rest) = self.kept, line.split()
        room = room_name(7)
        if word == "keep":
            name, who = kept.keep(rest[0], now, room if "room" in rest else "")
            return f"{name}: {who}" if who else name
        if word == "come":
            try:
                return str(kept.come(room if rest[0] == "room" else rest[0], rest[1], now))
            except StreamIncomplete:
                return "not here"
        if word == "leaves":
            kept.leaves(room, rest[0])
        elif word == "begins":
            kept.begins(room)
        elif word == "ends":
            return str(kept.ends(room))
        return str(kept.expired(now)) if word == "expired" else ""


@pytest.mark.parametrize(
    "story",
    [
        # one thing for one, in the order of their ends
        [(0, "keep a", "1"), (1, "keep b", "2"), (2, "come 1 X", "a"), (2, "come 1 Y", "not here"),
         (10.9, "expired", "([], [])"), (11, "expired", "(['b'], [])"), (12, "come 2 X", "not here")],
        # who comes while it is computed waits, however long, and has it before it is kept
        [(0, "begins", ""), (0, "come room X", "None"), (0, "come room Y", "not here"), (9, "expired", "([], [])"),
         (9, "keep a room", "room 7: X"), (99, "expired", "([], [])")],
        # who comes first waits for a moment only
        [(0, "come room X", "None"), (1, "begins", ""), (3, "expired", "([], [])"), (3, "keep a room", "room 7: X")],
        [(0, "come room X", "None"), (2, "expired", "([], ['X'])"), (3, "keep a room", "room 7")],
        # who comes last finds it
        [(0, "begins", ""), (1, "keep a room", "room 7"), (2, "come room X", "a")],
        # a request that ends without its prompt takes hope from who waits, and from nobody else
        [(0, "begins", ""), (0, "come room X", "None"), (1, "ends", "X"), (1, "ends", "None")],
        [(0, "begins", ""), (1, "keep a room", "room 7"), (2, "ends", "None"), (3, "come room X", "a")],
        # who goes away doesn't have it
        [(0, "begins", ""), (0, "come room X", "None"), (0, "leaves Y", ""), (0, "leaves X", ""),
         (1, "keep a room", "room 7"), (1, "come room Y", "a")],
        [(0, "come nothing X", "not here")],
    ],
)  # fmt: skip
def test_what_is_kept_goes_to_who_comes_for_it(story: list[tuple[float, str, str]]) -> None:
    desk = Desk()
    assert [desk.do(at, line) for at, line, _ in story] == [said for _, _, said in story]


def test_the_next_to_end_is_known() -> None:
    """Things and people, but nobody whose prompt is being computed."""
    kept: Kept[str, str] = Kept(10.0, 2.0)
    found = [kept.deadline]
    kept.keep("a", 1.0)
    found.append(kept.deadline)
    kept.come(room_name(1), "X", 2.0)
    found.append(kept.deadline)
    kept.begins(room_name(1))
    found.append(kept.deadline)
    assert found == [None, 11.0, 4.0, 11.0]
    assert len(kept) == 1
    assert (kept.everybody(), kept.everybody()) == (["X"], [])


@pytest.mark.parametrize(
    "params", [None, {}, {PARAMS: 3}, {PARAMS: {"remote_engine_id": "a"}}, {PARAMS: {"num_tokens": "x"}}, "x"]
)
def test_a_handover_that_cannot_be_read_is_named(params: Any) -> None:
    with pytest.raises(InvalidArgument, match=PARAMS):
        read_handover(params)


class Owner:
    def __init__(self, wanted: int) -> None:
        self.answer = TextAnswer([5], 0, wanted)


def test_an_arrived_prompt_is_decoded_at_once() -> None:
    """Nothing of it is computed: its first token takes a decode step, and its blocks can be hit."""
    stepper: Stepper[Owner] = Stepper(Limits(block_size=BLOCK), Timing())
    scheduler = stepper.scheduler
    sequence = scheduler.add_named(Owner(3), *scheduler.cut(PROMPT))
    sequence.arrived = True
    step = stepper.begin()
    assert step is not None
    assert (step.plan.prefill_tokens, step.plan.decoding, len(step.plan.producing)) == (0, True, 1)
    assert step.seconds == pytest.approx(decode_ms(10 / 16384) / 1000)
    assert len(stepper.end(step)) == 1
    second = scheduler.add(Owner(1), PROMPT)
    assert stepper.begin() is not None
    assert second.cached_tokens == len(PROMPT) - 1


def test_one_that_is_preempted_computes_its_prompt() -> None:
    """What had arrived is gone with its blocks."""
    scheduler: Scheduler[None] = Scheduler(Limits(block_size=BLOCK, num_gpu_blocks=4, watermark=0.0))
    sequence = scheduler.add_named(None, *scheduler.cut(PROMPT[:12]))
    sequence.arrived = True
    (first,) = scheduler.plan().producing
    scheduler._preempt()
    assert not first.running
    scheduler.pool._inactive.clear()
    assert scheduler.plan().prefill_tokens == 12


requests = st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 3)), min_size=1, max_size=15)


@given(requests, st.booleans())
def test_no_block_is_lost(wanted: list[tuple[int, bool, int]], caching: bool) -> None:
    """Prompts computed and kept, in a cache that holds few of them; all ends when all is taken."""
    limits = Limits(block_size=8, num_gpu_blocks=16, max_num_seqs=4, watermark=0.0, enable_prefix_caching=caching)
    stepper: Stepper[Owner] = Stepper(limits, Timing(), holds=True)
    scheduler = stepper.scheduler
    kept: list[Sequence[Owner]] = []
    for length, arrived, kind in wanted:
        scheduler.add_named(Owner(1), *scheduler.cut([kind] * length)).arrived = arrived
    for _ in range(1000):
        step = stepper.begin()
        if step is None:
            if not kept:
                break
            scheduler.release(kept.pop(0))
        else:
            kept += [output.sequence for output in stepper.end(step)]
        assert scheduler.held == len(kept)
        assert scheduler.pool.used + scheduler.pool.cached <= 16
    assert (scheduler.running, scheduler.waiting, scheduler.held, scheduler.pool.used) == (0, 0, 0, 0)
