"""Lines that can't be run here are understood by the real parsers: in the pages, the README and every `--help`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import pytest
from docs.generate import commands_page, help_text
from docs.generate.help_text import Block
from tests.docs.pages import FILE, READ, RUN, SERVE, SHOWN, STOP, steps
from tests.docs.session import ROOT
from tests.docs.style import title
from tests.docs.test_pages import PAGES
from tests.docs.understood import Reader

LAPTOP = ROOT / "docs/get-started/laptop.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_what_a_page_does_not_run_is_understood(page: Path, reader: Reader) -> None:
    """Fences that are marked `read, since …`; files that the page makes are there."""
    for step in steps(page, title(page)):
        if step.kind == FILE:
            reader.write(step.name, step.text)
        if step.kind == READ:
            assert reader.read(step.text), step.place


def test_few_fences_are_neither_run_nor_understood() -> None:
    """Less than 5% of those for users."""
    kinds = Counter(step.kind for page in PAGES for step in steps(page, title(page)) if step.kind != STOP)
    assert kinds[SHOWN] < 0.05 * kinds.total(), dict(kinds)
    assert min(kinds[RUN], kinds[SERVE], kinds[FILE]) > 0, dict(kinds)


def test_the_readme_is_understood(reader: Reader) -> None:
    """Each of its lines, but for the request, which a page that is run has too."""
    fences = (ROOT / "README.md").read_text().split("```sh\n")[1:]
    assert sum(reader.read(fence.partition("```")[0]) for fence in fences if not fence.startswith("curl")) >= 8


def test_the_first_answer_is_what_a_run_page_shows() -> None:
    """The README's request, and what it prints, are those of a page that the tests run from top to bottom."""
    text = (ROOT / "README.md").read_text()
    first = "```sh\ncurl" + text.partition("```sh\ncurl")[2].partition("```\n\n```text")[0]
    shown = text.partition("```text\n")[2].partition("```")[0]
    page = LAPTOP.read_text()
    assert "Germany" in first
    assert f"{first}```\n\n```text\n{shown}```" in page


@pytest.mark.parametrize("name", commands_page.programs())
def test_examples_of_help_are_understood(name: str, reader: Reader) -> None:
    """What `--help` shows can be typed."""
    program = commands_page.programs()[name]
    if not isinstance(program, click.Command):
        return
    blocks = [part for part in help_text.parts(program.epilog or "") if isinstance(part, Block) and part.typed]
    for block in blocks:
        for line in block.lines:
            assert reader.read(help_text.example(line)[0].replace("…", "x")), line


def test_every_example_of_getting_started_that_serves_is_run() -> None:
    """The quick start's own file is served there, not only named."""
    walk = steps(LAPTOP, title(LAPTOP))
    assert any("examples/quickstart.yaml" in step.text for step in walk if step.kind == SERVE)
    assert [step for step in walk if step.kind == RUN]
