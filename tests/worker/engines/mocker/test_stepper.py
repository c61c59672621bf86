"""The mock engine without a clock: tokens, ends, and steps that are skipped without a trace."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.protocols import EOS, STOP
from dynamo.worker.engines.mocker.scheduler import Limits
from dynamo.worker.engines.mocker.stepper import Reasoning, Stepper, TextAnswer, Timing

TEXT = list(range(100, 140))


@dataclass(eq=False)
class Job:
    number: int
    answer: TextAnswer
    tokens: list[int] = field(default_factory=list)


def all_of(answer: TextAnswer) -> list[int]:
    found = []
    while not answer.over:
        found.append(answer.take())
    return found


def test_an_answer_is_the_text_from_its_position_on() -> None:
    """It starts where the seed says, begins again at the end of the text, and ends after what was wanted."""
    answer = TextAnswer(TEXT, 38, 4)
    assert all_of(answer) == [138, 139, 100, 101]
    assert answer.stopped_by is None


def test_a_stop_id_ends_an_answer_from_the_floor_on() -> None:
    """One that comes before `min_tokens` doesn't count; the same token later does."""
    stops = {102: EOS, 105: STOP}
    assert all_of(TextAnswer(TEXT, 0, 20, stops=stops)) == [100, 101, 102]
    answer = TextAnswer(TEXT, 0, 20, floor=4, stops=stops)
    assert all_of(answer) == [100, 101, 102, 103, 104, 105]
    assert answer.stopped_by == 105
    assert answer.sure == 0


def test_many_tokens_are_those_that_come_one_by_one() -> None:
    """`take_many` up to `sure` leaves exactly the last one."""
    one, many = TextAnswer(TEXT, 7, 60, marks={0: 1, 9: 2}), TextAnswer(TEXT, 7, 60, marks={0: 1, 9: 2})
    assert many.take_many(many.sure) + all_of(many) == all_of(one)


@pytest.mark.parametrize(("ratio", "wanted", "marks"), [(0.5, 10, {0: 1, 4: 2}), (1.0, 3, {0: 1, 2: 2}), (0.1, 10, {})])
def test_thinking_has_its_share(ratio: float, wanted: int, marks: dict[int, int]) -> None:
    """The first token opens it, the last of its share closes it; a share that can't hold both marks has none."""
    assert Reasoning(1, 2, ratio).marks(wanted) == marks


arrivals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 50), st.integers(1, 60), st.integers(0, 2)), min_size=1, max_size=10
)


def history(wanted: list[tuple[int, int, int, int]], limits: Limits, skip: bool) -> list[object]:
    """All that is seen of an engine to which requests come at a step each: tokens, cache changes, durations."""
    stepper: Stepper[Job] = Stepper(limits, Timing())
    jobs = []
    seen: list[object] = []
    clock = 0
    coming = sorted((at, number) for number, (at, *_) in enumerate(wanted))
    while coming or stepper.scheduler.running or stepper.scheduler.waiting:
        while coming and coming[0][0] <= clock:
            number = coming.pop(0)[1]
            _, prompt, answer, kind = wanted[number]
            if prompt + answer <= stepper.scheduler.longest:
                job = Job(number, TextAnswer(TEXT, number, answer))
                jobs.append(job)
                stepper.scheduler.add(job, [kind] * prompt)
        step = stepper.begin()
        if step is None:
            clock += 1
            continue
        count = 0
        if skip:
            count = stepper.quiet(step)
            if coming:
                count = max(0, min(count, coming[0][0] - clock - 1))
            stepper.skip(step, count)
        seen += [step.seconds] * (count + 1)
        clock += count + 1
        for output in stepper.end(step):
            seen.append((clock, output.sequence.owner.number, output.over, output.sequence.cached_tokens))
            output.sequence.owner.tokens.append(output.token)
        if (changes := stepper.scheduler.pool.take_changes()) is not None:
            seen.append((clock, list(changes.stored), list(changes.removed)))
    return seen


@given(arrivals, st.integers(12, 40), st.booleans(), st.booleans(), st.sampled_from(["lifo", "fifo"]))
def test_skipping_changes_nothing(
    wanted: list[tuple[int, int, int, int]], blocks: int, caching: bool, chunked: bool, mode: str
) -> None:
    """With and without `skip`: the same durations, first and last tokens at the same steps, the same cache events."""
    limits = Limits(
        num_gpu_blocks=blocks, block_size=8, max_num_seqs=4, max_num_batched_tokens=32, watermark=0.0,
        enable_prefix_caching=caching, enable_chunked_prefill=chunked, preemption_mode=mode,
    )  # fmt: skip
    plain, skipped = history(wanted, limits, skip=False), history(wanted, limits, skip=True)
    durations = [[entry for entry in seen if isinstance(entry, float)] for seen in (plain, skipped)]
    assert durations[0] == durations[1]
    kept = [entry for entry in skipped if not isinstance(entry, float)]
    assert [entry for entry in plain if entry in kept] == kept
    left_out = [entry for entry in plain if not isinstance(entry, float) and entry not in kept]
    assert all(isinstance(entry, tuple) and entry[2] is False for entry in left_out)
