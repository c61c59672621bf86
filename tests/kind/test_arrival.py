"""A cluster that is made beside the tests: whoever needs it waits, and learns that it does not come."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from e2e import arrival

ROOT = Path(__file__).resolve().parents[2]
MAKER = """
import sys, time
sys.path.insert(0, {root!r})
from e2e import arrival
with arrival.announced(int(sys.argv[1])):
    {work}
"""


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(arrival.VARIABLE, raising=False)


def maker(work: str) -> list[str]:
    """A process that does this and then says that the cluster is there."""
    return [sys.executable, "-c", MAKER.format(root=str(ROOT), work=work)]


def test_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is there; a second time at once."""
    with arrival.awaited(tmp_path / "arrival", maker("time.sleep(0.5)")) as variables:
        monkeypatch.setenv(*next(iter(variables.items())))
        arrival.wait()
        arrival.wait()


@pytest.mark.parametrize("work", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_one_that_does_not_come_is_no_endless_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Its maker failed, or was killed."""
    with arrival.awaited(tmp_path / "arrival", maker(work)) as variables:
        monkeypatch.setenv(*next(iter(variables.items())))
        with pytest.raises(arrival.NotComingError, match="did not come up"):
            arrival.wait()


def test_whoever_does_not_need_it_any_more_ends_its_maker(tmp_path: Path) -> None:
    """Ctrl-C in the middle, say."""
    began = time.monotonic()
    with arrival.awaited(tmp_path / "arrival", maker("time.sleep(300)")):
        pass
    assert time.monotonic() - began < 30


def test_nobody_makes_one() -> None:
    """A cluster of the user's own is there already."""
    assert arrival.VARIABLE not in os.environ
    arrival.wait()
