"""Test processes are forks of one that has imported the tests."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.order.forking import END_SECONDS, forking

pytestmark = pytest.mark.processes
MODULE = """
from pathlib import Path
with Path({imported!r}).open("a") as file:
    file.write("once ")
"""


@pytest.fixture
def interpreter(tmp_path: Path) -> Iterator[list[str]]:
    """An interpreter whose parent has imported one test."""
    test = tmp_path / "test_of_a_fork.py"
    test.write_text(MODULE.format(imported=str(tmp_path / "imported")))
    with forking([str(test)]) as command:
        yield shlex.split(command)


def run(interpreter: list[str], command: str, given: str = "") -> str:
    """What a command prints."""
    done = subprocess.run(
        [*interpreter, "-u", "-c", command], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr
    return done.stdout


def test_modules_are_there_already(interpreter: list[str], tmp_path: Path) -> None:
    """Each process has them, and a life of its own; they were imported once."""
    command = "import os, sys; print('test_of_a_fork' in sys.modules, sys.stdin.readline(), os.getpid())"
    loaded, given, pids = zip(*(run(interpreter, command, given).split() for given in "ab"), strict=True)
    assert (loaded, given) == (("True", "True"), ("a", "b"))
    assert len({*pids}) == 2
    assert (tmp_path / "imported").read_text() == "once "


def test_one_that_dies_is_seen(interpreter: list[str]) -> None:
    """What it wrote arrives, its end too, and the next one is a fork all the same."""
    assert run(interpreter, "import os; print('going', flush=True); os.kill(os.getpid(), 9)") == "going\n"
    assert run(interpreter, "print('here')") == "here\n"


def test_the_server_ends_when_it_is_told(tmp_path: Path) -> None:
    """One that had to be killed would cost each run of the tests a minute."""
    (tmp_path / "test_of_nothing.py").touch()
    with forking([str(tmp_path / "test_of_nothing.py")]) as command:
        assert run(shlex.split(command), "print('here')") == "here\n"
        told = time.monotonic()
    assert time.monotonic() - told < END_SECONDS / 2
