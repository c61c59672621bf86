"""Every program of docs/how-to/program/models.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ages.llm.conftest import Deployment

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(480)]
PAGE = (Path(__file__).parents[3] / "docs/how-to/program/models.md").read_text()
SNIPPET = re.compile(r"(?:<!-- (serves|prints): ([^\n]*) -->\n)?```python\n(.*?)```", re.DOTALL)
SNIPPETS = SNIPPET.findall(PAGE)


@pytest.fixture(scope="module")
def page_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One for the whole page: each model has a name of its own."""
    opened = Deployment(tmp_path_factory.mktemp("page"))
    yield opened
    opened.close()


def test_every_program_says_what_it_does() -> None:
    """None is left out."""
    assert len(SNIPPETS) >= 10
    assert [code for kind, _, code in SNIPPETS if not kind] == []


@pytest.mark.parametrize(("model", "code"), [(model, code) for kind, model, code in SNIPPETS if kind == "serves"])
def test_programs_that_serve(page_deployment: Deployment, tmp_path: Path, model: str, code: str) -> None:
    """A chat with the model is answered, and SIGTERM ends the program in order."""
    file = tmp_path / f"{model}.py"
    file.write_text(code)
    program = page_deployment.run(file, name=model)
    page_deployment.serves(model, program)
    assert page_deployment.say(model, "hello", max_tokens=20).strip()
    assert program.stop(30) == 0, program.text()[-2000:]


@pytest.mark.parametrize(("says", "code"), [(says, code) for kind, says, code in SNIPPETS if kind == "prints"])
def test_programs_that_print(tmp_path: Path, says: str, code: str) -> None:
    """Without etcd and NATS."""
    file = tmp_path / "program.py"
    file.write_text(code)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, says in done.stdout) == (0, True), done.stdout + done.stderr[-2000:]
