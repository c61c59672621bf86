"""A finding, and how a report of them reads. Pure.

Shells collect facts, rules turn facts into findings; `dynamo doctor`, `install` and `apply` share both.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

MOST_FINDINGS: Final = 50
"""A cluster with a thousand broken pods still fits a screen or two."""
_CHARACTERS: Final = 400
_WIDTH: Final = 79


class Weight(StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"


class Finding(NamedTuple):
    """One thing that is wrong: what, why, and the command that mends it."""

    code: str
    what: str
    cause: str
    mend: str
    weight: Weight = Weight.ERROR


class Report(NamedTuple):
    """What was looked at, what is wrong, and what couldn't be looked at."""

    looked_at: tuple[str, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 0 where all is well, 1 with findings, 2 where it couldn't look."""
        if self.findings:
            return 1
        return 2 if self.unseen else 0


def report_of(looked_at: Iterable[str], findings: Iterable[Finding], unseen: Iterable[str] = ()) -> Report:
    """Order findings, errors first, each once and cut to a length that can be read."""
    cut = dict.fromkeys(f._replace(what=_cut(f.what), cause=_cut(f.cause), mend=_cut(f.mend)) for f in findings)
    ordered = sorted(cut, key=lambda f: f.weight is not Weight.ERROR)
    return Report(tuple(looked_at), tuple(ordered[:MOST_FINDINGS]), tuple(_cut(text) for text in unseen))


def as_lines(report: Report) -> list[str]:
    """Lay a report out for a terminal of 80 columns."""
    lines = []
    for finding in report.findings:
        lines += _wrapped(f"{finding.weight}: ", finding.what)
        lines += _wrapped("  cause: ", finding.cause)
        lines += _wrapped("  mend:  ", finding.mend)
    for text in report.unseen:
        lines += _wrapped("not seen: ", text)
    lines += _wrapped("looked at: ", ", ".join(report.looked_at) or "nothing")
    count = len(report.findings)
    verdict = f"{count} finding{'s' if count > 1 else ''}" if count else "nothing is wrong" if not report.unseen else ""
    return [*lines, verdict] if verdict else lines


def as_plain(report: Report) -> dict[str, Any]:
    """Return a report for programs."""
    return {
        "exitCode": report.exit_code,
        "findings": [f._asdict() | {"weight": f.weight.value} for f in report.findings],
        "lookedAt": list(report.looked_at),
        "notSeen": list(report.unseen),
    }


def sentences(findings: Sequence[Finding]) -> str:
    """Return findings as the lines of an error message."""
    return "\n".join(f"{f.what}: {f.cause}. {f.mend}" for f in findings)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    ) or [head.rstrip()]  # fmt: skip


def _cut(text: str) -> str:
    """Return one line without control characters; what is cut off is said by an ellipsis."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _CHARACTERS]).split())
    return line if len(line) <= _CHARACTERS else line[: _CHARACTERS - 1] + "…"
