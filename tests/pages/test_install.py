"""What the guides have people install, and the program's name."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.environments import quick_environment
from tests.pages.printed import Rows
from tests.processes import answered

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def test_what_the_table_installs_is_there(rows: Rows, project: dict[str, Any]) -> None:
    """Each `pip install` of the table installs the clone, with extras that it has."""
    for row in rows.all():
        named = re.findall(r'pip install -e "\.\[([\w,]+)\]"', row.here)
        assert named, row
        assert {extra for extras in named for extra in extras.split(",")} <= set(project["optional-dependencies"])


def test_the_programs_names(rows: Rows, project: dict[str, Any]) -> None:
    """Installing puts dynamo-run on the PATH, under that name only."""
    assert "dynamo-run" in project["scripts"]
    rows.shows("target")
    assert "type `dynamo-run`" in rows["dynemo-run"].here
    assert "dynemo-run" not in project["scripts"]


@pytest.mark.processes
def test_dynamo_run(rows: Rows, tmp_path: Path) -> None:
    """`dynamo run` does what `dynamo-run` does."""
    rows.shows("dynamo run")
    done = answered([sys.executable, "-m", "dynamo.cli", "run", "out=echo"], "hi\n", quick_environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")
