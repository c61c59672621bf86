"""Starts programs of ours without importing them anew: a process of `forks.py` has done so, and forks them.

That is half of what the tests of a deployment would cost. What they run is the same from `__main__` on, with an
environment, a session and files of its own; starting by `exec` is what `dynamo up`, the pages and chaos test.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests import forks
from tests.environments import without

PROGRAMS: Final = (
    "dynamo.frontend", "dynamo.worker", "dynamo.worker.fetch", "dynamo.cli.run", "dynamo.mocker", "dynamo.router",
)  # fmt: skip
SCRIPTS: Final = tuple(str(Path(__file__).parent / name) for name in ("ages/", "worker/said_of_sources.py"))
"""How paths begin of programs that are forked, too."""
_MODULES: Final = (
    "dynamo.frontend.process", "dynamo.worker.main", "dynamo.cli.run.main", "dynamo.cli.run.session",
    "dynamo.runtime.transport.nats", "dynamo.runtime.discovery.etcd", "dynamo.runtime.http.server",
    "dynamo.worker.engines.mocker.engine", "dynamo.worker.engines", "dynamo.llm.hub.fetch", "dynamo.router.main",
    "dynamo._core", "uvloop", "pydantic",
)  # fmt: skip
_INTERPRETER: Final = "PYTHON"
"""How variables begin that the interpreter reads when it starts."""


class Forked:
    """A child of a `Nursery`, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._over = threading.Event()

    def ended(self, code: int) -> None:
        self.returncode = code
        self._over.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """One process that has imported `_MODULES`; its children end by themselves, as others do."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        env = {**os.environ, "PYTHONPATH": without(Path(self._folder.name), "aiohttp")}
        self._process = subprocess.Popen(
            [sys.executable, forks.__file__, *_MODULES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env,
            start_new_session=True,
        )  # fmt: skip
        self._children: dict[int, Forked] = {}
        self._started: list[Forked] = []
        self._changed, self._turn = threading.Condition(), threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        atexit.register(self.close)

    def start(
        self, argv: Sequence[str], env: Mapping[str, str], files: Sequence[tuple[str, int]], folder: str = ""
    ) -> Forked:
        """Start what `may_be_forked`, in a folder; `files` are its first three."""
        argv = argv[2:] if argv[1] == "-m" else argv[1:]
        order = {"program": argv[0], "argv": argv, "env": dict(env), "files": files, "folder": folder or os.getcwd()}
        assert self._process.stdin is not None
        with self._turn, self._changed:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            assert self._changed.wait_for(lambda: self._started, 60), "nothing is forked"
            return self._started.pop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: Any = json.loads(line)
            with self._changed:
                if "code" in said:
                    self._children.pop(said["pid"]).ended(said["code"])
                else:
                    self._children[said["pid"]] = Forked(said["pid"])
                    self._started.append(self._children[said["pid"]])
                    self._changed.notify_all()

    def close(self) -> None:
        """End it, not its children; more than once is fine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._reader.join(20)
        self._process.stdout.close()
        self._folder.cleanup()


@functools.cache
def nursery() -> Nursery:
    """The one of this process."""
    return Nursery()


def close() -> None:
    """End the one of this process, where there is one."""
    if nursery.cache_info().currsize:
        nursery().close()


def may_be_forked(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Tell whether this is one of `PROGRAMS` or `SCRIPTS`, and its interpreter would be told nothing that this one
    wasn't."""
    if argv[0] != sys.executable or not (argv[2] in PROGRAMS if argv[1] == "-m" else argv[1].startswith(SCRIPTS)):
        return False
    variables = {name: value for name, value in env.items() if name.startswith(_INTERPRETER) and name != "PYTHONPATH"}
    return all(os.environ.get(name) == value for name, value in variables.items())
