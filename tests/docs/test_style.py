"""Prose keeps to its rules; what doesn't yet stands in ALLOWED, which only shrinks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from tests.docs.pages import FILE, PRINTS, READ, RUN, SERVE, SHOWN, STOP, steps
from tests.docs.style import ROOT, USERS, broken, pages, title, users_pages, words

ALLOWED: Final[dict[str, dict[str, int]]] = {}
"""By page and rule: how often it is still broken. A page that gets better lowers its number; a new page has none."""
MOST_SHOWN: Final = 0.05
"""Share of the user pages' fences that are neither run nor read by our parsers."""


@pytest.mark.parametrize("page", pages(), ids=title)
def test_a_page_keeps_the_rules(page: Path) -> None:
    """Lengths of lines, cells and pages, languages of fences, words."""
    results = list(broken(page))
    counts = Counter(rule for rule, _ in results)
    allowed = ALLOWED.get(title(page), {})
    assert counts == Counter(allowed), "\n".join(text for rule, text in results if counts[rule] != allowed.get(rule, 0))


def test_half_of_the_words_are_for_users() -> None:
    """Tutorials, how-tos and concepts beside the contributors' pages."""
    users = sum(map(words, users_pages()))
    every = sum(words(page) for page in pages() if title(page).startswith("docs/"))
    print(f"{users} of {every} words in docs/ are for users")
    assert users >= every / 2


def test_fences_of_user_pages_are_run() -> None:
    """Few are only shown; each has a reason, which is printed. tests/ages runs those of how-to/program."""
    walk = [step for page in users_pages() if page.parent.name != "program" for step in steps(page, title(page))]
    shown = [step for step in walk if step.kind == SHOWN]
    typed = [step for step in walk if step.kind in (RUN, SERVE, FILE, READ, SHOWN)]
    print(f"{len(shown)} of {len(typed)} fences are only shown, {sum(step.kind == READ for step in typed)} only parsed")
    print("\n".join(f"{step.place}: {step.why}" for step in shown))
    assert not [step for step in walk if step.kind not in (RUN, SERVE, FILE, READ, SHOWN, STOP, PRINTS)]
    assert len(shown) <= MOST_SHOWN * len(typed)


def test_a_page_has_one_kind() -> None:
    """Each page of docs/ lies in a folder that has one; a tutorial and a how-to say first what one gets."""
    kinds = {*USERS, "reference", "contributing", "design", "index.md", "assets"}
    assert [
        title(page) for page in pages() if title(page).startswith("docs/") and title(page).split("/")[1] not in kinds
    ] == []


def test_the_readme_is_read_in_one_sitting() -> None:
    """It sells in one screen, and has no more lines and words than people read."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900
