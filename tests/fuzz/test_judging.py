"""What counts as harm: pure, from what was seen."""

from __future__ import annotations

import pytest
from tests.fuzz.judging import (
    FORGED,
    Answer,
    Bars,
    Memory,
    Seen,
    Site,
    Wait,
    beyond,
    log_violations,
    of_time,
    unmeant,
    violations,
)  # fmt: skip


def test_the_control_takes_off_what_the_machine_did() -> None:
    """A wait counts for what it was longer than those beside it at the same moments, not at other ones."""
    waits = [Wait(10.0, 0.5), Wait(20.0, 0.3)]
    assert beyond(waits, []) == 0.5
    assert beyond(waits, [Wait(9.9, 0.45)]) == pytest.approx(0.3)
    assert beyond(waits, [Wait(9.9, 0.45), Wait(20.2, 0.3)]) == pytest.approx(0.05)
    assert beyond(waits, [Wait(11.0, 9.0)]) == 0.5
    assert beyond([], [Wait(1.0, 1.0)]) == 0.0


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Seen(Site([Wait(1, 0.2)])), "/live waited 200 ms"),
        (Seen(Site(gaps=[Wait(1, 0.4)])), "a stream paused 400 ms"),
        (Seen(Site(failures=["a stream just stopped"])), "another client failed: a stream just stopped"),
        (Seen(memory={"frontend": Memory(80, 190, 85)}), "frontend rose by 110 MB (to 190)"),
        (Seen(memory={"frontend": Memory(80, 170, 160)}), "frontend kept 80 MB"),
        (Seen(memory={"frontend": Memory(1000, 1060, 1001)}), "frontend had 1060 MB"),
        (Seen(files={"frontend": (20, 40)}), "frontend has 40 descriptors, had 20"),
        (Seen(ended=["worker-m, exit code -11"]), "a process ended: worker-m, exit code -11"),
        (Seen(answers=[Answer(500, "internal_error", 0.1, "/v1")]), "answered 500 internal_error to /v1 after 0.1 s"),
        (Seen(answers=[Answer(0, "", 90.0)]), "answered nothing after 90.0 s"),
        (Seen(logs={"frontend": f"{FORGED}\n"}), "frontend's log: a client wrote a line of its own"),
        (Seen(logs={"frontend": "10:00:00 frontend: " + "x" * 40_000}), "frontend's log grew by 40019 bytes"),
    ],
)
def test_each_bar_has_its_sentence(seen: Seen, says: str) -> None:
    """One broken bar, one sentence that names it."""
    (sentence,) = violations(seen)
    assert says in sentence


def test_nothing_is_said_of_what_is_allowed() -> None:
    """Small waits, memory that comes back, refusals that are meant, ordinary lines of a log."""
    seen = Seen(
        Site([Wait(1, 0.09)], [Wait(1, 0.24)]), Site(), {"frontend": Memory(80, 170, 100)}, {"frontend": (20, 25)},
        {"frontend": "10:00:00 WARNING runtime.registry: lost\n10:00:00 frontend.main: ready\nready {}\n"}, [],
        [Answer(200), Answer(400, "invalid_value"), Answer(503, "frontend_full"), Answer(504, "deadline"), Answer(-1)],
    )  # fmt: skip
    assert violations(seen) == []


def test_failures_beside_it_are_the_machines() -> None:
    """Where the control's clients fail too, nothing is said of failures."""
    both = Site(failures=["TimeoutError"])
    assert violations(Seen(both, both)) == []


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(500, "worker_lost"), True), (Answer(503, "no_instances"), True), (Answer(503, "unreachable"), True),
        (Answer(503, "model_full"), False), (Answer(429, "rate_limit_exceeded"), False), (Answer(404, "x"), False),
        (Answer(502), True), (Answer(0), True), (Answer(-1), False),
    ],
)  # fmt: skip
def test_which_answers_are_meant(answer: Answer, wrong: bool) -> None:
    """A flood may be refused; a lost worker, or nothing at all, is the server's fault."""
    assert unmeant(answer) is wrong


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10:00:00 a: b\n", []),
        (f"10:00:00 a: model 'x\n{FORGED}' is not there\n", ["a client wrote a line of its own"]),
        ("10:00:00 a: \x1b[31mred\n", ["control characters"]),
        ("10:00:00 a: one\x85two\n", ["control characters"]),
        ("10:00:00 a: one\ntwo\n", ["a line without a head: 'two'"]),
        ("10:00:00 ERROR a: b\nTraceback (most recent call last):\n  File x\nValueError: y\n", ["a traceback"]),
    ],
)
def test_what_is_wrong_with_a_log(text: str, says: list[str]) -> None:
    """Lines that a client made, what moves a terminal, and tracebacks, each told once."""
    violations = log_violations(text)
    assert len(violations) == len(says)
    assert all(sentence.startswith(said) for sentence, said in zip(violations, says, strict=True))


def test_lines_of_native_libraries() -> None:
    """They have no head; what a client forged is told all the same."""
    assert log_violations("10:00:00 a: b\nllg error: x\n  state\n", native=True) == []
    assert log_violations(f"llg error: x\n{FORGED}\n", native=True) == ["a client wrote a line of its own"]


def test_only_waits_may_be_accidents() -> None:
    """What is done again before it counts is what a busy machine can do, too."""
    sentences = violations(
        Seen(Site([Wait(1, 9.0)], [Wait(1, 9.0)]), memory={"a": Memory(1, 900, 1)}), Bars(megabytes=100)
    )
    assert [of_time(sentence) for sentence in sentences] == [True, True, False]
