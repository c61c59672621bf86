"""Lines that can't be run here are understood by the real parsers: in the pages, the README and every `--help`."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from docs.generate import commands_page, help_text
from docs.generate.help_text import Block
from tests.docs.pages import FILE, READ, RUN, steps
from tests.docs.session import ROOT
from tests.docs.test_pages import PAGES, title
from tests.docs.understood import Reader


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_what_a_page_does_not_run_is_understood(page: Path, reader: Reader) -> None:
    """Fences that are marked `read, since …`; files that the page makes are there."""
    for step in steps(page, title(page)):
        if step.kind == FILE:
            (reader.folder / step.name).write_text(step.text)
        if step.kind == READ:
            assert reader.read(step.text), step.place


def test_the_readme_is_understood(reader: Reader) -> None:
    """Each of its lines; that of the curl is run in docs/get-started/laptop.md's words."""
    fences = (ROOT / "README.md").read_text().split("```")[1::2]
    assert sum(reader.read(fence.partition("\n")[2]) for fence in fences) > 20


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
    served = [step.text for step in steps(PAGES[0], title(PAGES[0])) if step.kind == "serve"]
    assert any("examples/quickstart.yaml" in text for text in served)
    assert [step for step in steps(PAGES[0], title(PAGES[0])) if step.kind == RUN]
