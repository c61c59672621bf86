"""What a reader of these pages types is typed, from top to bottom, and what they promise is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs import captures
from tests.docs.pages import RUN, SERVE, STOP, steps
from tests.docs.session import Session, session
from tests.docs.style import title, users_pages
from tests.worker.chain_model import write_gguf

PAGES = [page for page in users_pages() if not title(page).startswith("docs/how-to/program/")]
"""Those for users; tests/ages runs the programs of two of them in its own way."""
RUNS = [page for page in PAGES if any(step.kind in (RUN, SERVE) for step in steps(page, title(page)))]
FIRST = "docs/get-started/laptop.md"
REAL = [page for page in RUNS if title(page) != FIRST and "gemma" in page.read_text()]
"""Those with the real model, which loads for seconds: `make e2e` types them."""
CAPTURES = {"docs/tutorials/survive-a-crash.md": ("quickstart", "Two workers are killed, the answer is complete")}
"""Pages whose first steps are a picture."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Session]:
    """A reader's folder, with a model in it that is loaded at once; those that pages name are loaded as they are."""
    with session(write_gguf(tmp_path, context=4096)) as resources:
        yield resources


@pytest.mark.processes(seconds=60)
@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [page for page in RUNS if page not in REAL], ids=title)
def test_a_page_does_what_it_says(page: Path, opened: Session) -> None:
    """Every step, in order, on real programs; a picture that it draws is the one that it shows."""
    check(page, opened)


def check(page: Path, opened: Session) -> None:
    """Type a page from top to bottom."""
    for step in steps(page, title(page)):
        opened.run(step)
    for drawn in opened.folder.glob("*.svg"):
        shown = captures.ASSETS / drawn.name
        assert not shown.exists() or drawn.read_text() == shown.read_text(), f"copy {drawn.name} to {captures.ASSETS}"
    if capture := CAPTURES.get(title(page)):
        captures.check(*capture, opened.typed[:2])


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_what_serves_is_stopped(page: Path) -> None:
    """What serves is stopped again, and only that."""
    walk = steps(page, title(page))
    served = [step.name for step in walk if step.kind == SERVE]
    assert sorted(served) == sorted(step.name for step in walk if step.kind == STOP)
    assert len(set(served)) == len(served)
