"""Programs as people wrote them for NVIDIA Dynamo, each a process of its own against a real etcd and NATS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.environments import without
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.processes import APPENDS
from tests.waiting import eventually
from tests.warm import Forked, may_be_forked, nursery

from dynamo.runtime.names import new_id

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 100
"""Seconds for everything that a program does: many start at once where tests run side by side."""
BAD = ("Traceback", "never awaited", "was destroyed", "never retrieved")
"""What no program may leave on standard error."""


class Program:
    """One process. What it prints is read from a file."""

    def __init__(self, argv: list[str], env: dict[str, str], folder: Path, fresh: bool = False) -> None:
        self.name = Path(argv[0]).name
        self._out, self._err = folder / "out", folder / "err"
        argv = [sys.executable, *argv]
        self._process: Forked | subprocess.Popen[bytes]
        if not fresh and may_be_forked(argv, env):
            self._out.touch()
            self._err.touch()
            files = [(os.devnull, os.O_RDONLY), (str(self._out), APPENDS), (str(self._err), APPENDS)]
            self._process = nursery().start(argv, env, files, str(folder))
            return
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=folder
            )

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def said(self) -> str:
        """On standard error."""
        return self._err.read_text()

    def wait_for(self, line: str) -> str:
        """The first line printed that begins so."""

        def find() -> str | None:
            printed = next((entry for entry in self.lines if entry.startswith(line)), None)
            assert printed or self._process.poll() is None, f"{self.name} ended: {self.lines} {self.said[-2000:]}"
            return printed

        text: str = eventually(f"{self.name} prints {line!r}: {self.lines} {self.said[-2000:]}", find, LIMIT)
        return text

    def end(self, code: int = 0) -> list[str]:
        """Wait for its end by itself; what it printed."""
        assert self._process.wait(LIMIT) == code, f"{self.name}: {self.lines} {self.said[-2000:]}"
        assert [bad for bad in BAD if bad in self.said] == [], self.said[-2000:]
        return self.lines

    def ended(self) -> list[str]:
        """Wait for its end, whatever that is; what it printed."""
        self._process.wait(LIMIT)
        return self.lines

    def leave(self, number: int = signal.SIGTERM) -> list[str]:
        """Tell it to leave, and wait until it has."""
        self._process.send_signal(number)
        return self.end()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)


Start = Callable[..., Program]
"""`start("dynamo_0_1/server.py", *arguments, **environment)`; before the arguments comes a namespace of its own.

`fresh`: in an interpreter that has imported nothing.
"""


@pytest.fixture
def namespace() -> str:
    return f"t{new_id():x}"


@pytest.fixture
def start(namespace: str, etcd_server: EtcdServer, nats_server: NatsServer, tmp_path: Path) -> Iterator[Start]:
    """Start programs; those that still run at the end are killed."""
    programs: list[Program] = []
    servers = {"ETCD_ENDPOINTS": etcd_server.url, "NATS_SERVER": nats_server.url, "ETCD_LEASE_TTL": "2"}
    path = without(tmp_path / "absent", "aiohttp")

    def begin(file: str, *arguments: str, fresh: bool = False, **env: str) -> Program:
        folder = tmp_path / str(len(programs))
        folder.mkdir()
        argv = [str(PROGRAMS / file), namespace, *arguments]
        programs.append(Program(argv, {**os.environ, "PYTHONPATH": path, **servers, **env}, folder, fresh))
        return programs[-1]

    yield begin
    for program in programs:
        program.kill()
