"""What a run says at its end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.chaos.leaks import Held
from bench.chaos.oracle import PLENTY, Facts, Record, Violation, beside, ending
from bench.chaos.schedule import Fault, sort_of

SHOWN = 30


@dataclass
class Outcome:
    """One seed's run."""

    seed: int
    seconds: float
    about: str
    faults: Sequence[Fault] = ()
    records: Sequence[Record] = ()
    facts: Facts = field(default_factory=Facts)
    first: Sequence[Held] = ()
    last: Sequence[Held] = ()
    not_sent: int = 0
    settled: float | None = None
    """Seconds after the last request until nothing was left of it; None: something was."""
    violations: list[Violation] = field(default_factory=list)


def report(outcome: Outcome) -> str:
    """Several lines."""
    return "\n".join(_lines(outcome))


def _lines(outcome: Outcome) -> Iterator[str]:
    records = outcome.records
    yield f"seed {outcome.seed}: {outcome.seconds:.0f} s, {outcome.about}"
    yield f"  {len(outcome.faults)} faults"
    yield from _table(Counter(f"{sort_of(fault.target)} {fault.kind}" for fault in outcome.faults).items())
    yield f"  {len(records)} requests, {outcome.not_sent} more not sent since too many were open"
    yield from _table(Counter(map(ending, records)).items())
    failed = [
        record for record in records if record.errors and not record.ask.refused and record.ask.patience >= PLENTY
    ]
    if failed:
        yield f"  {len(failed)} errors of requests that had {PLENTY:g} s, by whose faults were near"
        yield from _table(Counter(f"{ending(one)}: {beside(one, outcome.facts)}" for one in failed).items())
    if (longest := longest_gap(records)) is not None:
        ask = longest.ask
        yield f"  longest gap in a stream {longest.gap:.1f} s (request {ask.number}, sent at {longest.sent:.1f} s)"
    yield f"  longest wait for an end {max((_took(record) for record in records), default=0.0):.1f} s"
    if stalls := outcome.facts.stalls:
        stood = sum(stall.end - stall.start for stall in stalls)
        yield f"  the clients themselves stood still {len(stalls)} times, {stood:.1f} s in all"
    yield from _processes(outcome)
    if outcome.settled is not None:
        yield f"  nothing was left {outcome.settled:.1f} s after the last request"
    yield f"  {len(outcome.violations)} violations"
    for one in outcome.violations[:SHOWN]:
        yield f"    {one}"


def longest_gap(records: Iterable[Record]) -> Record | None:
    """The stream with the longest time between two pieces of text, of clients that read at once."""
    whole = [record for record in records if record.ask.stream and record.done and not record.ask.slow]
    return max(whole, key=lambda one: one.gap, default=None)


def _took(record: Record) -> float:
    return 0.0 if record.ended is None or record.ask.slow else record.ended - record.sent


def _table(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    for what, count in sorted(counts, key=lambda one: (-one[1], one[0])):
        yield f"    {count:5}  {what}"


def _processes(outcome: Outcome) -> Iterator[str]:
    begun = {held.name: held for held in outcome.first}
    for now in outcome.last:
        first = begun[now.name]
        yield (
            f"  {now.name} (life {now.life}): descriptors {first.files} -> {now.files}, threads {first.threads} -> "
            f"{now.threads}, MB {first.megabytes:.0f} -> {now.megabytes:.0f}, tasks {first.tasks} -> {now.tasks}"
        )


def listing(records: Iterable[Record]) -> str:
    """A line per request, for the folder of logs: `x-request-id` is chaos-NUMBER."""
    return "".join(f"{_line(one)}\n" for one in sorted(records, key=lambda one: one.sent))


def _line(one: Record) -> str:
    ask, ended = one.ask, "" if one.ended is None else f"{one.ended - one.sent:.2f}"
    asked = f"{ask.path} {'stream' if ask.stream else 'whole'} n {ask.choices} tokens {ask.tokens} limit {ask.limit}"
    got = {index: len(text) for index, text in one.texts.items()}
    errors = "".join(f" {error}" for error in one.errors) + (f" {one.broken}" if one.broken else "")
    return f"{ask.number} {one.sent:.2f} +{ended} {one.frontend} {asked}: {ending(one)} {got} gap {one.gap:.2f}{errors}"
