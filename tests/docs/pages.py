"""A page of documentation as steps: what its reader types, writes into files and sees. Pure, but for reading the page.

The rules, so that pages need few marks:
- a `sh` fence is run; a `python` fence too, unless its first line is `# name.py`: then it is a file, as `yaml` fences
  with `# name.yaml` are;
- a `text` fence is what the step before it prints. `…` stands for anything within a line, alone on a line for any
  lines;
- `<!-- test: … -->` right above a fence says otherwise: `serves as NAME` (it goes on until `<!-- test: stop NAME -->`),
  `file NAME`, `read, since …` (the parsers understand it; it can't be run here), `shown, since …` (not even that).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

_FENCE: Final = re.compile(r"^ *(`{3,})(.*)$")
_MARK: Final = re.compile(r"^<!-- test: (.+) -->$")
_NAMED: Final = re.compile(r"# ([\w./-]+\.(?:py|yaml|jinja))$")
DIAGRAM: Final = "mermaid"
RUN, SERVE, STOP, FILE, READ, SHOWN, PRINTS = "run", "serve", "stop", "file", "read", "shown", "prints"


class PageError(AssertionError):
    """A mark or a fence that says nothing; the message has file and line."""


@dataclass(frozen=True)
class Step:
    """One fence, or a mark that stands alone."""

    place: str
    """`docs/page.md:12`, for messages."""
    kind: str
    language: str = ""
    text: str = ""
    name: str = ""
    """Of the file, or of what serves."""
    why: str = ""
    """It isn't run."""
    prints: str | None = None


def steps(page: Path, title: str) -> list[Step]:
    """All of a page, in order; raises `PageError` for what no rule fits."""
    steps: list[Step] = []
    for step in _steps(page.read_text(), title):
        if step.kind == PRINTS:
            if not steps or steps[-1].kind not in (RUN, SERVE, READ) or steps[-1].prints is not None:
                raise PageError(
                    f"{step.place}: a text fence belongs to a step that prints, or is marked 'shown, since'"
                )
            steps[-1] = replace(steps[-1], prints=step.text)
        else:
            steps.append(step)
    return steps


def _steps(text: str, title: str) -> Iterator[Step]:
    lines = iter(enumerate(text.splitlines(), 1))
    mark = ""
    for number, line in lines:
        place = f"{title}:{number}"
        if match := _MARK.match(line):
            if match[1].startswith("stop "):
                yield Step(place, STOP, name=match[1].removeprefix("stop "))
            else:
                mark = match[1]
        elif match := _FENCE.match(line):
            text_of_fence = _until(match[1], lines, place)
            if match[2].strip() != DIAGRAM:
                yield _step(place, mark, match[2].strip(), text_of_fence)
            mark = ""
        elif mark and line.strip():
            raise PageError(f"{place}: a fence comes after 'test: {mark}'")


def _until(fence: str, lines: Iterator[tuple[int, str]], place: str) -> str:
    held: list[str] = []
    for _, line in lines:
        if line.strip() == fence:
            return "\n".join(held) + "\n"
        held.append(line)
    raise PageError(f"{place}: this fence has no end")


def _step(place: str, mark: str, language: str, text: str) -> Step:
    word, _, rest = mark.partition(" ")
    if word in ("read,", "shown,") and rest.startswith("since ") and rest.removeprefix("since ").strip():
        return Step(place, word.rstrip(","), language, text, why=rest)
    if word == "serves" and rest.startswith("as "):
        return Step(place, SERVE, language, text, name=rest.removeprefix("as "))
    if word == "file" and rest:
        return Step(place, FILE, language, text, name=rest)
    if mark:
        raise PageError(f"{place}: nobody knows the mark {mark!r}")
    if named := _NAMED.match(text.partition("\n")[0]):
        return Step(place, FILE, language, text, name=named[1])
    if language in ("sh", "python"):
        return Step(place, RUN, language, text)
    if language == "text":
        return Step(place, PRINTS, language, text)
    raise PageError(f"{place}: a fence of {language or 'no language'} is neither run nor marked")


def pattern(expected: str) -> re.Pattern[str]:
    """What output looks like; `…` stands for anything."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else r"[^\n]*".join(map(re.escape, line.rstrip().split("…"))) + r" *\n"
        for line in expected.rstrip("\n").splitlines()
    ]
    return re.compile("".join(lines))
