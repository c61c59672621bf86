"""`dynamo up` as a process of its own, with stand-ins for frontend and worker, real etcd and NATS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.environments import environment
from tests.processes import DYNAMO, Lines, living
from tests.waiting import eventually

PIPELINE = """\
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  components: [{{engine: mocker}}]
"""
DEADLINE = 30.0


def fake_packages(folder: Path) -> Path:
    """`dynamo.frontend` and `dynamo.worker` that are `fake_part.py`."""
    script = Path(__file__).with_name("fake_part.py")
    for kind in ("frontend", "worker"):
        package = folder / "dynamo" / kind
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "__main__.py").write_text(
            f"import os, runpy\nos.environ['FAKE_KIND'] = {kind!r}\n"
            f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        )
    return folder


class Workplace:
    """A folder with a pipeline file, its own state home, and every command run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.environment = environment(self.state)
        self._running: list[Lines] = []

    def fake(self, **behaviour: dict[str, Any]) -> None:
        """Put stand-ins in the place of frontend and worker; says how they misbehave."""
        place = fake_packages(self.folder / "fake") if not (self.folder / "fake").exists() else self.folder / "fake"
        self.environment["PYTHONPATH"] = os.pathsep.join([str(place), *filter(None, sys.path)])
        self.environment["FAKE"] = json.dumps(behaviour)

    def write(self, name: str = "test", replicas: int = 1, text: str | None = None) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(text or PIPELINE.format(name=name, replicas=replicas))
        return file

    def up(self, *arguments: str | Path) -> Lines:
        words = [str(a) for a in arguments]
        port = [] if "--http-port" in words else ["--http-port", "0"]
        self._running.append(Lines([*DYNAMO, "up", *words, *port], self.environment, self.folder, DEADLINE))
        return self._running[-1]

    def command(self) -> list[str]:
        return [*DYNAMO]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DYNAMO, *arguments],
            capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=DEADLINE, check=False,
        )  # fmt: skip

    def processes(self) -> dict[int, str]:
        """Every living process that was started from here, however far down."""
        return living("XDG_STATE_HOME", self.state)

    def wait_until(self, condition: Callable[[], bool], what: str, within: float = DEADLINE) -> None:
        eventually(what, condition, within)

    def nothing_left(self) -> None:
        """No process of ours lives, or it is gone in a moment."""
        self.wait_until(lambda: not self.processes(), f"still alive: {self.processes()}")

    def part_pid(self, part: str, pipeline: str = "test") -> int:
        """The pid of a part once it is known."""
        self.wait_until(lambda: self._pid(part, pipeline) is not None, f"no pid of {part}")
        pid = self._pid(part, pipeline)
        assert pid is not None
        return pid

    def _pid(self, part: str, pipeline: str) -> int | None:
        return next((p["pid"] for p in self.parts(pipeline) if p["name"] == part), None)

    def parts(self, pipeline: str = "test") -> list[dict[str, Any]]:
        """The parts as `state.json` has them now."""
        try:
            return list(json.loads((self.state / "dynamo" / pipeline / "state.json").read_text())["parts"])
        except (OSError, ValueError):
            return []

    def is_ready(self, part: str, restarts: int) -> bool:
        """Whether the state says that the part serves, after so many restarts."""
        return any((p["name"], p["state"], p["restarts"]) == (part, "ready", restarts) for p in self.parts())

    def close(self) -> None:
        for command in self._running:
            command.close()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    """A workplace whose commands see the real packages; call `fake` for stand-ins."""
    workplace = Workplace(tmp_path)
    yield workplace
    workplace.close()
