"""What was seen while something hostile was done, held against the bars: `violations`. Pure; `watch.py` sees it.

A machine that is busy makes everybody wait. So a site that nobody attacks is asked at the same moments, and what it
waited then is taken off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

FORGED: Final = "00:00:00 ERROR fuzz.forged: user admin signed in"
"""What hostile texts hold behind a line break; a line of a log that begins so was written by a client."""
NATIVE: Final = frozenset({"worker-l"})
"""llama.cpp and its grammar library tell their state there, in lines of their own form."""
_LINE: Final = re.compile(r"^(\d\d:\d\d:\d\d( [A-Z]+)? [\w.]+: |ready \{|\[?[0-9/]{4,} )")
_TRACEBACK: Final = "Traceback (most recent call last):"
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
MEANT: Final = {
    429: frozenset({"rate_limit_exceeded"}),
    503: frozenset({
        "connections", "frontend_full", "bodies", "large_requests", "model_full", "busy", "queue_full", "queue_timeout",
        "shutdown", "full", "draining",
    }),
    504: frozenset({"deadline", "timeout"}),
}  # fmt: skip
"""The refusals that a flood may get, by status: the bounds that a frontend is there to keep."""


@dataclass(frozen=True)
class Wait:
    """A client waited from `at` on."""

    at: float
    seconds: float

    @property
    def end(self) -> float:
        return self.at + self.seconds


@dataclass(frozen=True)
class Site:
    """What the clients of one site saw."""

    live: Sequence[Wait] = ()
    gaps: Sequence[Wait] = ()
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Memory:
    """Megabytes of one process: before, at its peak, and some seconds after."""

    before: float
    peak: float
    after: float


@dataclass(frozen=True)
class Answer:
    """What a hostile client got; status 0: nothing within its patience, -1: the connection was cut."""

    status: int
    code: str = ""
    seconds: float = 0.0
    what: str = ""


@dataclass(frozen=True)
class Seen:
    """Everything of one attack."""

    watched: Site = Site()
    control: Site = Site()
    memory: Mapping[str, Memory] = field(default_factory=dict)
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    ended: Sequence[str] = ()
    answers: Sequence[Answer] = ()


@dataclass(frozen=True)
class Bars:
    """What is allowed."""

    live: float = 0.1
    pause: float = 0.25
    megabytes: float = 100.0
    kept: float = 50.0
    """Megabytes that may still be there afterwards: caches, and what an allocator keeps."""
    most: float = 1024.0
    """Megabytes of a process at its peak."""
    files: int = 8
    log: int = 16 * 1024
    """Bytes of log per request."""
    others: bool = False
    """Whether other clients may be refused, too."""


ONE: Final = Bars()
"""For any single request of up to 4 MB."""
HUNDRED: Final = Bars(live=1.0, pause=2.0, megabytes=1024.0, kept=150.0, files=110, others=True)
"""For a hundred at once."""
_REFUSALS: Final = tuple(f'"code":"{code}"' for codes in MEANT.values() for code in codes)
_OF_TIME: Final = ("/live waited", "a stream paused")


@dataclass
class Worst:
    """The largest figures of a run."""

    live: float = 0.0
    pause: float = 0.0
    megabytes: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Of each process: at first, at its peak, and at last."""

    def take(self, seen: Seen) -> None:
        """Count one thing in."""
        self.live = max(self.live, beyond(seen.watched.live, seen.control.live))
        self.pause = max(self.pause, beyond(seen.watched.gaps, seen.control.gaps))
        for name, memory in seen.memory.items():
            first, most, _ = self.megabytes.get(name, (memory.before, 0.0, 0.0))
            self.megabytes[name] = (first, max(most, memory.peak), memory.after)

    def __str__(self) -> str:
        waits = f"/live waited {self.live * 1000:.0f} ms at most, streams {self.pause * 1000:.0f} ms"
        sizes = (f"{name} {a:.0f}, {b:.0f}, {c:.0f}" for name, (a, b, c) in self.megabytes.items())
        return f"{waits}; MB at first, at most and at last: {'; '.join(sizes)}"


def beyond(waits: Iterable[Wait], control: Iterable[Wait]) -> float:
    """Return the longest wait, less what the control's clients waited at the same moments."""
    others = sorted(control, key=lambda wait: wait.at)
    return max((wait.seconds - _meanwhile(wait, others) for wait in waits), default=0.0)


def _meanwhile(wait: Wait, others: Iterable[Wait]) -> float:
    return max((other.seconds for other in others if other.at < wait.end and wait.at < other.end), default=0.0)


def violations(seen: Seen, bars: Bars = ONE) -> list[str]:
    """Return one sentence for each bar that was broken."""
    return [*_times(seen, bars), *_sizes(seen, bars), *_answers(seen.answers), *_logs(seen, bars)]


def of_time(violation: str) -> bool:
    """Tell whether it may be the machine's fault after all: such a one counts when it comes again."""
    return violation.startswith(_OF_TIME)


def _times(seen: Seen, bars: Bars) -> Iterable[str]:
    stall = beyond(seen.watched.live, seen.control.live)
    if stall > bars.live:
        yield f"/live waited {stall * 1000:.0f} ms longer than beside it, {bars.live * 1000:.0f} are allowed"
    pause = beyond(seen.watched.gaps, seen.control.gaps)
    if pause > bars.pause:
        yield f"a stream paused {pause * 1000:.0f} ms longer than beside it, {bars.pause * 1000:.0f} are allowed"
    if not seen.control.failures:
        for text in dict.fromkeys(seen.watched.failures):
            if not (bars.others and any(code in text for code in _REFUSALS)):
                yield f"another client failed: {text[:300]}"


def _sizes(seen: Seen, bars: Bars) -> Iterable[str]:
    yield from (f"a process ended: {text[:300]}" for text in seen.ended)
    for name, memory in seen.memory.items():
        rise, kept = memory.peak - memory.before, memory.after - memory.before
        if rise > bars.megabytes:
            yield f"{name} rose by {rise:.0f} MB (to {memory.peak:.0f}), {bars.megabytes:.0f} are allowed"
        elif memory.peak > bars.most:
            yield f"{name} had {memory.peak:.0f} MB, {bars.most:.0f} are allowed"
        if kept > bars.kept:
            yield f"{name} kept {kept:.0f} MB, {bars.kept:.0f} are allowed"
    for name, (before, after) in seen.files.items():
        if after > before + bars.files:
            yield f"{name} has {after} descriptors, had {before}"


def unmeant(answer: Answer) -> bool:
    """Tell whether an answer is the server's fault and not a refusal that it is there to give."""
    if answer.status >= 500:
        return answer.code not in MEANT.get(answer.status, ())
    return answer.status == 0


def _answers(answers: Iterable[Answer]) -> Iterable[str]:
    alike: dict[str, list[float]] = {}
    for answer in filter(unmeant, answers):
        text = "nothing" if answer.status == 0 else f"{answer.status} {answer.code}".strip()
        alike.setdefault(f"{text}{f' to {answer.what}' if answer.what else ''}", []).append(answer.seconds)
    for text, seconds in alike.items():
        often = f", {len(seconds)} times" if len(seconds) > 1 else ""
        yield f"answered {text} after {max(seconds):.1f} s{often}"


def _logs(seen: Seen, bars: Bars) -> Iterable[str]:
    for name, text in seen.logs.items():
        yield from (f"{name}'s log: {sentence}" for sentence in log_violations(text, native=name in NATIVE))
        size, most = len(text.encode(errors="replace")), bars.log * max(1, len(seen.answers))
        if size > most:
            yield f"{name}'s log grew by {size} bytes, {most} are allowed"


def log_violations(text: str, *, native: bool = False) -> list[str]:
    """Return what is wrong with these lines of a log; `native`: libraries of C++ and Rust write into it, too."""
    results: dict[str, None] = {}
    in_traceback = False
    for line in text.split("\n"):
        if line.startswith(FORGED):
            results["a client wrote a line of its own"] = None
        elif _LINE.match(line):
            in_traceback = False
        elif line.strip() == _TRACEBACK or "Exception Group Traceback" in line:
            results["a traceback"], in_traceback = None, True
        elif line and not in_traceback and not native:
            results[f"a line without a head: {line[:80]!r}"] = None
        if _CONTROLS.search(line):
            results[f"control characters: {line[:80]!r}"] = None
    return list(results)
