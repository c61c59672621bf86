"""The oracle sees what must not be: each kind of violation, and none in what may be."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from bench.chaos.asks import CHAT, TEXTS, Ask, draw, make
from bench.chaos.oracle import Facts, Record, Window, beside, ending, judge

from dynamo.worker.engines.mocker.answers import TEXT

OVERHEAD = 20
ASK = make(7, TEXTS, "hello", 30, seed=3)


def error(code: str = "worker_lost", message: str = "the worker was lost") -> dict[str, Any]:
    return {"error": {"message": message, "type": "api_error", "param": None, "code": code}}


def good(ask: Ask = ASK, sent: float = 100.0, took: float = 1.0) -> Record:
    """As it should be."""
    expected = [ask.expected(choice) for choice in range(ask.choices)]
    prompt = ask.prompt + (OVERHEAD if ask.path == CHAT else 0)
    usage = {"prompt_tokens": prompt, "completion_tokens": sum(len(text) for text, _ in expected)}
    return Record(
        ask, "frontend-1", sent, status=200, done=1, ended=sent + took, usage=usage,
        texts={choice: text for choice, (text, _) in enumerate(expected)},
        finishes={choice: [reason] for choice, (_, reason) in enumerate(expected)},
    )  # fmt: skip


def failed(code: str = "worker_lost", **changes: Any) -> Record:
    """With an error in mid-stream."""
    began = {"texts": {0: good().texts[0][:5]}, "finishes": {}, "done": 0, "usage": None}
    return replace(good(), **{**began, "errors": [error(code)], **changes})


def kinds(record: Record, *windows: Window, stalls: tuple[Window, ...] = ()) -> list[str]:
    return [entry.kind for entry in judge([record], Facts(windows, stalls, OVERHEAD))]


FAULT = Window("nats", "kill", 95.0, 99.0)
LOST = Window("worker-1", "kill", 95.0, 99.0)


def test_what_should_be_is_no_violation() -> None:
    """Exact answers of every shape that the traffic has, and refused bad requests."""
    random, seen = Random(1), set()
    for number in range(500):
        ask = draw(random, number)
        record = good(ask)
        if ask.refused:
            nothing: dict[str, Any] = {"texts": {}, "finishes": {}, "done": 0, "usage": None}
            record = replace(record, status=ask.refused[0], errors=[error("invalid_value")], **nothing)
        assert kinds(record) == []
        seen.add(ending(record))
    assert seen == {"exact text", "bad request refused"}


def test_the_expected_text_is_the_mockers() -> None:
    """Known from the seed and the choice."""
    text, reason = ASK.expected(1)
    assert (text, reason) == (TEXT[3 + 1 :][:30], "length")
    stopped = make(1, TEXTS, "", 60, stop=" fox").expected(0)
    assert stopped == (" The quick brown", "stop")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"texts": {0: good().texts[0][:-1]}}, "wrong text"),
        ({"texts": {0: good().texts[0] + "x"}}, "wrong text"),
        ({"texts": {0: good().texts[0] * 2}}, "wrong text"),
        ({"texts": {}}, "wrong text"),
        ({"finishes": {0: ["stop"]}}, "wrong"),
        ({"finishes": {0: ["length", "length"]}}, "two ends"),
        ({"done": 2}, "two ends"),
        ({"after": 1}, "two ends"),
        ({"errors": [error()]}, "two ends"),
        ({"done": 0}, "no end"),
        ({"ended": None}, "hang"),
        ({"ended": 133.0}, "late"),
        ({"usage": {"prompt_tokens": 6, "completion_tokens": 30}}, "usage"),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 29}}, "usage"),
        ({"broken": "reset"}, "broken"),
    ],
)  # fmt: skip
def test_a_wrong_end_is_a_violation(wrong: dict[str, Any], kind: str) -> None:
    """Lost, doubled, wrong, late and missing ends, with or without a fault beside them."""
    assert kind in kinds(replace(good(), **wrong))
    assert kind in kinds(replace(good(), **wrong), FAULT)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (failed(texts={0: "something else"}), "wrong text"),
        (failed(errors=[error(), error()]), "two ends"),
        (failed(errors=[{"detail": "oops"}]), "unclear"),
        (failed("internal_error"), "unclear"),
        (failed(errors=[error(message="")]), "unclear"),
        (failed(status=400), "wrong"),
        (failed("deadline", ended=101.0), "early"),
        (failed(ended=200.0), "late"),
    ],
)
def test_an_error_has_rules_too(record: Record, kind: str) -> None:
    """One, in the API's words, in time, after a right beginning."""
    assert kind in kinds(record, FAULT)


def test_an_error_needs_a_fault() -> None:
    """Beside a fault, or ten seconds after it, a request may fail; else not."""
    assert kinds(failed()) == ["unexplained"]
    assert kinds(failed(), FAULT) == []
    assert kinds(failed(), replace(FAULT, start=80.0, end=89.0)) == ["unexplained"]
    assert kinds(failed(), replace(FAULT, start=102.0)) == ["unexplained"]
    assert kinds(failed(), stalls=(FAULT,)) == []
    assert kinds(failed("deadline", ended=130.1)) == ["unexplained"]
    assert kinds(failed("deadline", ended=130.1), FAULT) == []
    assert kinds(failed("deadline", ask=replace(ASK, limit=0.5), ended=100.6)) == []


def test_a_lost_worker_is_not_seen() -> None:
    """As long as requests may move: only more lost workers, NATS or the own frontend explain an error, or haste."""
    assert kinds(failed(), LOST) == ["seen"]
    assert kinds(failed("deadline", ended=130.1), LOST) == ["seen"]
    assert kinds(failed(), *[LOST] * 3, replace(FAULT, target="etcd"), replace(FAULT, target="frontend-2")) == ["seen"]
    assert kinds(failed(), *[LOST] * 4) == []
    assert kinds(failed(), LOST, replace(FAULT, target="frontend-1")) == []
    assert kinds(failed(), LOST, FAULT) == []
    assert kinds(failed(ask=replace(ASK, limit=3.0)), LOST) == []


def test_what_was_near_is_named() -> None:
    """By the sorts of the targets, once each."""
    facts = Facts([LOST, replace(LOST, target="worker-2"), FAULT], [], OVERHEAD)
    assert beside(failed(), facts) == "nats and worker"
    assert beside(failed(), Facts()) == "nothing"


def test_a_connection_breaks_only_with_its_frontend() -> None:
    """A frontend that was killed explains its own broken connections, and no other's."""
    broken = replace(good(), done=0, broken="reset", finishes={}, usage=None)
    killed = Window("frontend-1", "kill", 100.5, 104.0, dead=True)
    assert kinds(broken, killed) == []
    assert kinds(broken, replace(killed, target="frontend-2")) == ["broken"]
    assert kinds(broken, replace(killed, dead=False)) == ["broken"]
    assert kinds(broken, replace(killed, start=90.0, end=98.0)) == ["broken"]
    assert kinds(broken, replace(killed, owed=100.2)) == ["broken"]
    assert kinds(broken, replace(killed, owed=99.0)) == []


def test_time_in_which_nobody_could_answer_does_not_count() -> None:
    """A paused frontend and a stalled client move the limit, a paused worker doesn't."""
    late = good(took=36.0)
    assert kinds(late) == ["late"]
    assert kinds(late, Window("frontend-1", "pause", 101.0, 106.0, late=True)) == []
    assert kinds(late, Window("frontend-2", "pause", 101.0, 106.0, late=True)) == ["late"]
    assert kinds(late, Window("worker-1", "pause", 101.0, 106.0)) == ["late"]
    assert kinds(late, stalls=(Window("clients", "stall", 101.0, 106.0),)) == []
    assert kinds(good(replace(ASK, slow=True), took=45.0)) == []


def test_who_left_is_owed_nothing_but_the_truth() -> None:
    """A client that went away needs no end, but what it got must be right."""
    gone = replace(good(), left=True, done=0, finishes={}, usage=None, texts={0: good().texts[0][:3]})
    assert kinds(gone) == []
    assert kinds(replace(gone, texts={0: "nonsense"})) == ["wrong text"]
    assert ending(gone) == "client left"


def test_a_bad_request_is_refused_whatever_happens() -> None:
    """With its status, or not at all where its frontend was dead."""
    ask = Ask(1, TEXTS, b"{", refused=(400,))
    nothing: dict[str, Any] = {"texts": {}, "finishes": {}, "done": 0, "usage": None}
    refused = replace(good(), ask=ask, status=400, errors=[error("invalid_value")], **nothing)
    assert kinds(refused, FAULT) == []
    assert kinds(replace(refused, status=503), FAULT) == ["wrong"]
    assert kinds(replace(refused, status=200, errors=[], done=1), FAULT) == ["wrong"]
