"""Targets that need no site: parsers, model files, templates, pipelines. `run` does their cases in a process apart.

The first cases of a target are its corpus, by name: what was found once, and what is likely to be.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, Self, cast

from tests.fuzz.findings import RAISED, ROOT, Finding, Kept, environment

SECONDS: Final = 2.0
"""CPU time of one case."""
MEGABYTES: Final = 300.0
HANGS: Final = 120.0
"""Seconds without a word from a case."""
BUSY: Final = 8.0
"""Seconds of CPU time after which a case is ended."""
_LOOK: Final = 0.5
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AT_ONCE: Final = 100_000


class Local(Protocol):
    """A target: named cases, and made ones. A case raises `DynamoException` for what it refuses, and nothing else."""

    def corpus(self) -> Mapping[str, Callable[[], object]]: ...

    def case(self, random: Random) -> tuple[str, Callable[[], object]]: ...


TARGETS: Final = {"parsers": "parsers", "files": "model_files", "templates": "templates", "pipelines": "pipelines"}
"""The module of each."""


def target(name: str) -> Local:
    """Load a target."""
    return cast("Local", importlib.import_module(f"tests.fuzz.targets.{TARGETS.get(name, name)}"))


def run(
    name: str, seed: int, seconds: float, kept: Kept, *, first: int = 0, most: int | None = None, slower: float = 1.0
) -> int:
    """Do cases until the time is over or there were `most`; return how many. `slower`: than a machine at rest."""
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end and (most is None or number < first + most):
        count = _AT_ONCE if most is None else first + most - number
        with _Child(Case(name, seed, number, slower), count) as child:
            number = child.follow(end if most is None else None, kept)
    return number - first


class _Child:
    """A process that does cases, until it is over, hangs or dies."""

    def __init__(self, case: Case, count: int) -> None:
        self._case, self._last = case, case.number + count
        argv = [sys.executable, "-m", "tests.fuzz.child", case.target, str(case.seed), str(case.number), str(count)]
        # Errors go to a file, since nobody reads them before the end: a pipe would fill up and hold the process.
        # Lines come unbuffered: the selector sees nothing of what a buffer holds already.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            argv, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._errors.close()

    def follow(self, end: float | None, kept: Kept) -> int:
        """Hear of its cases; return the number of the next one that is to be done."""
        began, spent = time.monotonic(), 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._lines, selectors.EVENT_READ)
            while end is None or time.monotonic() < end:
                if not selector.select(_LOOK):
                    if broken := self._stuck(began, spent):
                        kept.add(self._case.finding([broken]))
                        return self._case.number + 1
                    continue
                line = self._lines.readline()
                if not line:
                    return self._ended(kept)
                self._case.heard(json.loads(line), kept)
                began, spent = time.monotonic(), cpu_seconds(self._process.pid)
        return self._case.number + 1

    def _stuck(self, began: float, spent: float) -> str:
        if (took := cpu_seconds(self._process.pid) - spent) > BUSY:
            return f"it was ended after {took:.0f} s of CPU time, {SECONDS:g} are allowed"
        return f"nothing came of it within {HANGS:g} s" if time.monotonic() - began > HANGS else ""

    def _ended(self, kept: Kept) -> int:
        code = self._process.wait(30)
        if code == 0:
            return self._last
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 1000))
        said = self._errors.read().decode(errors="replace").strip()[-300:]
        kept.add(self._case.finding([f"the process ended with exit code {code}: {said}"]))
        return self._case.number + 1


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, all its threads together."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Case:
    """The one that a child is at."""

    def __init__(self, target: str, seed: int, number: int, slower: float = 1.0) -> None:
        self.target, self.seed, self.number, self.name = target, seed, number, "before its first case"
        self._seconds = SECONDS * slower

    def heard(self, line: Mapping[str, Any], kept: Kept) -> None:
        """Take a line of the child."""
        self.number = line["number"]
        if "name" in line:
            self.name = line["name"]
        elif broken := judged(line, self._seconds):
            kept.add(self.finding(broken))

    def finding(self, broken: list[str]) -> Finding:
        replay = f"--only {self.target} --seed {self.seed} --case {self.number}"
        return Finding(self.target, self.name, broken, replay)


def judged(line: Mapping[str, Any], seconds: float = SECONDS) -> list[str]:
    """Return what is wrong with a case that has ended."""
    broken = []
    if line["error"]:
        broken.append(RAISED + line["error"])
    if line["cpu"] > seconds:
        broken.append(f"it took {line['cpu']:.1f} s of CPU time, {seconds:g} are allowed")
    if line["rose"] > MEGABYTES:
        broken.append(f"it took {line['rose']:.0f} MB, {MEGABYTES:.0f} are allowed")
    return broken
