"""Whether each request ended once and right: from what clients recorded to violations. Pure.

`Record` is one request as its client saw it, `Window` a time in which something was done to a process, `judge` the
verdict over all of them. All times are seconds since the run began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.chaos.asks import Ask
from bench.chaos.schedule import sort_of

SLACK: Final = 2.0
"""Seconds that an end may come after its time limit: two processes and a network have to say it."""
EARLY: Final = 0.1
MIGRATIONS: Final = 3
"""How often a request may go on elsewhere: the frontends' `--migration-limit`."""
RECOVERY: Final = 10.0
"""Seconds after a fault in which an error may still be its doing: the longest wait of the protocol."""
SLOW_CLIENT: Final = 20.0
_NEVER: Final = float("inf")


@dataclass
class Window:
    """Something that was done to `target`. `dead`: connections to it may break, `late`: its answers may come late."""

    target: str
    what: str
    start: float
    end: float = _NEVER
    dead: bool = False
    late: bool = False
    owed: float = 0.0
    """Requests sent before that are owed an answer all the same: it left in order."""

    def touches(self, start: float, end: float) -> bool:
        return self.start <= end and start <= self.end

    def overlap(self, start: float, end: float) -> float:
        """Seconds of it between the two."""
        return max(0.0, min(end, self.end) - max(start, self.start))


@dataclass
class Record:
    """One request and what came back."""

    ask: Ask
    frontend: str
    sent: float
    status: int | None = None
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, list[str]] = field(default_factory=dict)
    errors: list[Any] = field(default_factory=list)
    """Bodies of errors: the whole answer, or events of the stream."""
    done: int = 0
    """`[DONE]`s of a stream, or 1 for a whole answer."""
    after: int = 0
    """What came after the end."""
    usage: dict[str, Any] | None = None
    broken: str | None = None
    """How the connection failed."""
    left: bool = False
    """The client went away before the end."""
    ended: float | None = None
    first: float | None = None
    """When the first text came."""
    gap: float = 0.0
    """The longest time between two pieces of text, in seconds."""


@dataclass(frozen=True)
class Violation:
    """Something that must not be. `at`: seconds since the run began."""

    kind: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind}: {self.text}"


@dataclass
class Facts:
    """What the run knows besides."""

    windows: Sequence[Window] = ()
    stalls: Sequence[Window] = ()
    """Times in which the clients' own process stood still: nobody else is to blame for them."""
    overhead: int = 0
    """Tokens that the chat template adds to a prompt."""


def ending(record: Record) -> str:
    """How it ended, in a word or two, for the table."""
    if record.left:
        return "client left"
    if record.ask.refused and record.status in record.ask.refused:
        return "bad request refused"
    if record.broken is not None:
        return "connection broken"
    if record.errors:
        return f"error {code(record.errors[0])}"
    return "exact text" if record.done else "no end"


def code(error: Any) -> str:
    inner = error.get("error") if isinstance(error, dict) else None
    return str(inner.get("code")) if isinstance(inner, dict) else "unreadable"


def judge(records: Iterable[Record], facts: Facts) -> list[Violation]:
    """All violations, in the order of the requests."""
    return [one for record in records for one in verdict(record, facts)]


def verdict(record: Record, facts: Facts) -> list[Violation]:
    """What is wrong with one request; nothing for one that ended once and right."""
    found = [*_time(record, facts)]
    if record.ended is not None:
        found += _once(record)
        if not record.left:
            found += _answer(record, facts)
        found += _texts(record)
    ask = record.ask
    where = f"request {ask.number} ({ask.path}, {'stream' if ask.stream else 'whole'}, {record.frontend})"
    return [Violation(kind, record.sent, f"{where} {text}") for kind, text in found]


Found = Iterable[tuple[str, str]]


def _time(record: Record, facts: Facts) -> Found:
    if record.left:
        return
    if record.ended is None:
        yield "hang", f"had no end when the run ended; limit {record.ask.patience:g} s"
        return
    took = record.ended - record.sent
    excused = _excused(record, facts) + (SLOW_CLIENT if record.ask.slow else 0.0)
    if took > record.ask.patience + SLACK + excused:
        yield (
            "late",
            f"ended after {took:.1f} s ({ending(record)}); limit {record.ask.patience:g} s, excused {excused:.1f}",
        )
    is_deadline = any(code(error) == "deadline" for error in record.errors)
    if is_deadline and (record.ask.limit is None or took < record.ask.limit - EARLY):
        yield "early", f"was said to be over its deadline after {took:.1f} s; limit {record.ask.limit}"


def _excused(record: Record, facts: Facts) -> float:
    """Seconds in which its frontend, or its client, couldn't do anything."""
    end = _NEVER if record.ended is None else record.ended
    own = [window for window in facts.windows if window.late and window.target == record.frontend]
    return sum(one.overlap(record.sent, end) for one in (*own, *facts.stalls))


def _once(record: Record) -> Found:
    """Ends: one of the stream, one of each choice, nothing after it."""
    ends = record.done + len(record.errors)
    if ends > 1 or record.after:
        yield (
            "two ends",
            f"had {record.done} ends and {len(record.errors)} errors, and {record.after} pieces after that",
        )
    if any(len(reasons) > 1 for reasons in record.finishes.values()):
        yield "two ends", f"had finish reasons {record.finishes}"


def _answer(record: Record, facts: Facts) -> Found:
    """Text, or one clear error that something explains."""
    ask = record.ask
    if record.broken is not None:
        if not _frontend_was_dead(record, facts):
            yield "broken", f"lost its connection ({record.broken}) to a frontend that nobody killed"
    elif record.errors:
        yield from _error(record, facts)
    elif ask.refused:
        yield "wrong", f"is a bad request and was answered {record.status}"
    elif not record.done:
        yield "no end", f"ended without an end (status {record.status})"
    else:
        yield from _whole(record, facts)


def _frontend_was_dead(record: Record, facts: Facts) -> bool:
    assert record.ended is not None
    start, end = record.sent - 1.0, record.ended + 1.0
    dead = [window for window in facts.windows if window.dead and window.target == record.frontend]
    return any(one.touches(start, end) and record.sent >= one.owed for one in dead)


def _error(record: Record, facts: Facts) -> Found:
    error, ask = record.errors[0], record.ask
    inner = error.get("error") if isinstance(error, dict) else None
    if not isinstance(inner, dict) or set(inner) != {"message", "type", "param", "code"} or not inner["message"]:
        yield "unclear", f"was answered {record.status} with {json.dumps(error)[:200]}"
    elif inner["code"] == "internal_error":
        yield "unclear", f"was answered {record.status} {inner['message']}"
    elif ask.refused:
        if record.status not in ask.refused:
            yield "wrong", f"is a bad request ({ask.refused}) and was answered {record.status} {inner['message']}"
    elif record.status is not None and 400 <= record.status < 500:
        yield "wrong", f"is a good request and was answered {record.status} {inner['message']}"
    elif inner["code"] != "deadline" or ask.patience >= PLENTY:
        said = f"{record.status} {inner['code']}: {inner['message']}"
        if not _near(record, facts):
            yield "unexplained", f"failed while nothing was wrong: {said}"
        elif ask.patience >= PLENTY and _unseen(record, facts):
            yield "seen", f"failed though only {beside(record, facts)} had faults, {MIGRATIONS} at most: {said}"


PLENTY: Final = 20.0
"""Seconds in which anything that is asked is answered on a busy machine, if nothing is wrong."""


def beside(record: Record, facts: Facts) -> str:
    """What was wrong while a request ran, or shortly before: sorts of targets, for the table."""
    return " and ".join(sorted({sort_of(one.target) for one in _near(record, facts)})) or "nothing"


def _near(record: Record, facts: Facts) -> list[Window]:
    since, end = record.sent - RECOVERY, _NEVER if record.ended is None else record.ended
    return [one for one in (*facts.windows, *facts.stalls) if one.touches(since, end)]


def _unseen(record: Record, facts: Facts) -> bool:
    """Whether clients should see nothing of what was wrong: no more workers were lost than a request may move, and
    all that it needs besides was well. etcd is nothing that it needs."""
    near = [one.target for one in _near(record, facts)]
    lost = [target for target in near if sort_of(target) == "worker"]
    harmless = [target for target in near if sort_of(target) == "frontend" and target != record.frontend]
    return len(lost) <= MIGRATIONS and {"etcd", *lost, *harmless}.issuperset(near)


def _whole(record: Record, facts: Facts) -> Found:
    """It ended well: then everything of it is there."""
    ask = record.ask
    expected = [ask.expected(choice) for choice in range(ask.choices)]
    for choice, (text, reason) in enumerate(expected):
        if record.texts.get(choice, "") != text:
            yield "wrong text", _difference(choice, record.texts.get(choice, ""), text)
        elif record.finishes.get(choice) != [reason]:
            yield "wrong", f"choice {choice} finished with {record.finishes.get(choice)}, not {reason!r}"
    usage = record.usage or {}
    prompt = ask.prompt + (facts.overhead if ask.path.endswith("chat/completions") else 0)
    if usage.get("prompt_tokens") != prompt:
        yield "usage", f"says {usage.get('prompt_tokens')} prompt tokens, had {prompt}"
    if not ask.stop and usage.get("completion_tokens") != sum(len(text) for text, _ in expected):
        yield "usage", f"says {usage.get('completion_tokens')} tokens, has {sum(len(text) for text, _ in expected)}"


def _texts(record: Record) -> Found:
    """However it ended, what came is the beginning of what was to come."""
    if record.ask.refused or record.done:
        return
    for choice, text in record.texts.items():
        expected = record.ask.expected(choice)[0]
        if not expected.startswith(text):
            yield "wrong text", _difference(choice, text, expected)


def _difference(choice: int, found: str, expected: str) -> str:
    same = next((at for at, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    at = min(len(found), len(expected)) if same is None else same
    there = f"{found[max(0, at - 10) : at + 20]!r}, not {expected[max(0, at - 10) : at + 20]!r}"
    return f"choice {choice}: {len(found)} characters of {len(expected)}, differs at {at}: {there}"
