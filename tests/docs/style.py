"""The rules of prose, as CONTRIBUTING tells them: what breaks one in a page, by line. Pure, but for reading pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
USERS: Final = ("get-started", "tutorials", "how-to", "migrate", "concepts")
"""Folders of docs/ that hold pages for users; one kind of page each."""
GENERATED: Final = re.compile(r"docs/reference/")
LINE, CELL, PAGE = 120, 160, 400
LANGUAGES: Final = {"sh", "python", "yaml", "json", "text", "mermaid", "dockerfile", "toml", "promql", "jinja"}
WORDS: Final = {
    r"the original('s)?\b": "NVIDIA Dynamo",
    r"\b(three|all|any|older|several) ages?\b|\bages? (A|B|C|of)\b": "versions",
    r"\bof one's own\b": "your own",
    r"\bthe hub\b": "Hugging Face",
    r"\bsign-in\b": "authentication",
    r"\bthoughts\b": "reasoning",
    r"\bvectors\b": "embeddings",
    r"\bfigures\b": "metrics, or numbers",
    r"\bsays? of\b": "reports",
    r"\bgoes on\b": "continues",
    r"\blikewise\b": "name it again",
    r"^Who (wants|can't|has|needs)\b|[.:] Who (wants|can't|has|needs)\b": "If you want",
    r"^What (can't|isn't|is) [^?]*[.:]$": "a sentence with an actor",
    r"\bspeaks? of\b": "describes",
    r"\bnobody knows\b": "is unknown",
}
"""Words that readers stumble over, and what is written instead."""
FOR_USERS: Final = {r"\b(is|are) told\b": "an active verb", r"\brefused\b": "rejected"}
"""As `WORDS`, in pages for users only."""
_TEST: Final = re.compile(r"† |`(?:tests|e2e)/[^`]*`")
_CODE: Final = re.compile(r"`[^`]*`")
_LINK: Final = re.compile(r"\]\([^)]*\)")


def pages() -> list[Path]:
    """Every page that somebody writes by hand: docs/ without what is generated, and those beside the code."""
    first = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    return [*first, *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not GENERATED.match(title(page)))]


def users_pages() -> list[Path]:
    """Those for users."""
    return [page for page in pages() if title(page).split("/")[1:2] and title(page).split("/")[1] in USERS]


def title(page: Path) -> str:
    """Return the page's path in the repository."""
    return str(page.relative_to(ROOT))


def words(page: Path) -> int:
    """Count what a reader reads: fences too, marks not."""
    return len(re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL).split())


def broken(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the rules that a page breaks: name of the rule, and file, line and what is there."""
    lines = page.read_text().splitlines()
    terms = WORDS | FOR_USERS if page in users_pages() else WORDS
    if len(lines) > PAGE:
        yield "page", f"{title(page)} has {len(lines)} lines"
    fence = ""
    for number, line in enumerate(lines, 1):
        place = f"{title(page)}:{number}"
        if mark := re.match(r" *(`{3,})(\w*)(.*)$", line):
            fence = "" if fence else mark[1]
            if fence and mark[2] not in LANGUAGES:
                yield "language", f"{place}: a fence of {mark[2] or 'no language'}"
        elif not fence and not line.startswith("<!--"):
            yield from ((rule, f"{place}: {text}") for rule, text in _prose(line, terms))


def _prose(line: str, terms: dict[str, str]) -> Iterator[tuple[str, str]]:
    if line.lstrip().startswith("|"):
        for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")):
            shown = _TEST.sub("", _LINK.sub("]", cell.strip()))
            if len(shown) > CELL:
                yield "cell", f"{len(shown)} characters: {shown[:40]}…"
    elif len(line) > LINE and not line.lstrip().startswith(("[", "![", "**Status: ")):
        yield "line", f"{len(line)} characters"
    plain = _CODE.sub("", line)
    for word, instead in terms.items():
        if match := re.search(word, plain):
            yield "word", f"{match[0]!r}: write {instead}"
