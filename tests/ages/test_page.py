"""docs/how-to/program/endpoints.md: each of its programs is run as it is printed, and says what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ages.conftest import Start

PAGE = (Path(__file__).parents[2] / "docs/how-to/program/endpoints.md").read_text()
SNIPPETS = {
    name: (code, output or "")
    for code, name, output in re.findall(
        r"```python\n(# (\w+)\.py\n.*?)```\n(?:\n```text\n(.*?)```\n)?", PAGE, flags=re.DOTALL
    )
}
SERVERS = ("worker", "several")
"""Those that serve until they are told to leave; the others end by themselves."""

pytestmark = [pytest.mark.servers, pytest.mark.processes]


def test_every_snippet_is_run() -> None:
    """A program without a name is one that no test runs."""
    assert PAGE.count("```python") == len(SNIPPETS)
    assert set(SERVERS) < set(SNIPPETS)


Write = Callable[[str, str], str]


@pytest.fixture
def write(namespace: str, tmp_path: Path) -> Write:
    """`write(name, code)`: a file with the program, its namespace the test's own; `start` takes the path."""

    def to(name: str, code: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(code.replace("demo.", f"{namespace}.").replace('"demo"', f'"{namespace}"'))
        return str(path)

    return to


@pytest.mark.parametrize("name", sorted(set(SNIPPETS) - {*SERVERS, "client"}))
def test_a_program_alone(name: str, start: Start, write: Write, namespace: str) -> None:
    """It prints what stands below it."""
    code, output = SNIPPETS[name]
    assert output
    assert start(write(name, code)).end() == output.replace("demo.", f"{namespace}.").splitlines()


def test_a_worker_and_its_client(start: Start, write: Write) -> None:
    """The client finds the worker, which leaves in order."""
    worker = start(write("worker", SNIPPETS["worker"][0]))
    code, output = SNIPPETS["client"]
    assert start(write("client", code)).end() == output.splitlines()
    worker.leave()


def test_several(start: Start, write: Write) -> None:
    """All three endpoints answer."""
    worker = start(write("several", SNIPPETS["several"][0]))
    ask = SNIPPETS["client"][0].replace('"hello world"', "21").replace('"you"', "4")
    for endpoint, first in (
        ("maths.generate", "42"),
        ("other.generate", "42"),
        ("maths.load_metrics", "{'active': 0}"),
    ):
        assert start(write("ask", ask.replace("backend.generate", endpoint))).end()[0] == first
    worker.leave()
