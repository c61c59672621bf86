"""Runs the steps of a page as its reader does: one folder, real programs, ports of its own.

The folder holds what a clone has (`examples`, `charts`, …) and `model.gguf`, a small model. Ports that pages name
(8000, 8080, etcd's and NATS') become free ones, in what is typed and in what is expected.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from tests.docs.captures import Typed
from tests.docs.pages import FILE, READ, RUN, SERVE, SHOWN, STOP, Step, pattern
from tests.environments import without
from tests.processes import living
from tests.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
OF_THE_CLONE: Final = ("examples", "charts", "crds", "docs", "Makefile", "pyproject.toml", "constraints.txt", "locks")
PORTS: Final = (8000, 8080, 8788, 2379, 2380, 4222)
PROGRAMS: Final = {
    "dynamo": "dynamo.cli", "dynamo-run": "dynamo.cli.run", "dynamo-frontend": "dynamo.frontend",
    "dynamo-worker": "dynamo.worker",
}  # fmt: skip
STEP_SECONDS: Final = 240.0
OURS: Final = ("DYN_", "ETCD_", "NATS_", "OTEL_")


def free_ports(count: int) -> list[int]:
    """Different ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


class Serving:
    """A program that goes on while the page does."""

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._out: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=self._out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def shows(self, expected: re.Pattern[str]) -> bool:
        """Whether it has printed that by now; fails where it ended before."""
        ended = self.process.poll()
        found = expected.match(self.text())
        assert found or ended is None, f"it ended with {ended} and printed\n{self.text()}"
        return bool(found)

    def stop(self) -> int:
        """Ctrl-C, and its exit code; it must have ended soon after."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            return self.process.wait(STEP_SECONDS)
        finally:
            self.close()

    def close(self) -> None:
        """Nothing of it stays."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._out.close()


class Session:
    """One page, from top to bottom."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.state = folder / "here", folder / "state"
        self.folder.mkdir()
        for name in OF_THE_CLONE:
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "model.gguf").symlink_to(model)
        self._programs = _shims(folder / "bin")
        # No page installs them; fastokens takes seconds to load, in each process with a model.
        self._path = without(folder / "absent", "aiohttp", "fastokens")
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._serving: dict[str, Serving] = {}
        self.typed: list[Typed] = []
        """What was typed and printed so far, with the ports that the page names."""

    def run(self, step: Step) -> None:
        """Do what the page says, and hold what is seen against it."""
        if step.kind == FILE:
            file = self.folder / step.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._here(step.text))
        elif step.kind == SERVE:
            self._serve(step)
        elif step.kind == STOP:
            code = self._serving.pop(step.name).stop()
            assert code in (0, 130, -signal.SIGINT), f"{step.place}: {step.name} ended with {code}"
        elif step.kind == RUN:
            self._run(step)
        else:
            assert step.kind in (READ, SHOWN)

    def close(self) -> None:
        """Nothing that the page started stays."""
        for serving in self._serving.values():
            serving.close()
        for pid in living("XDG_STATE_HOME", self.state):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _run(self, step: Step) -> None:
        words = ["bash", "-euo", "pipefail", "-c", self._here(step.text)]
        if step.language == "python":
            words = ["python", "-c", self._here(step.text)]
        done = subprocess.run(
            words, cwd=self.folder, env=self._environment(step.text), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=STEP_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{step.place}: exit code {done.returncode}\n{done.stdout}"
        self.typed.append(Typed(step.text, self._there(done.stdout)))
        if step.prints is not None:
            seen = done.stdout.rstrip("\n") + "\n"
            assert pattern(self._here(step.prints)).fullmatch(seen), f"{step.place} prints\n{seen}"

    def _serve(self, step: Step) -> None:
        assert step.prints is not None, f"{step.place}: a text fence says when it serves"
        log = self.folder.parent / f"{step.name}.log"
        command = self._here(step.text).replace("\\\n", " ").strip()
        serving = Serving(f"exec {command}", self.folder, self._environment(step.text), log)
        self._serving[step.name] = serving
        expected = pattern(self._here(step.prints))
        try:
            eventually(f"{step.place} prints that", lambda: serving.shows(expected), STEP_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; it printed\n{serving.text()}") from error
        self.typed.append(Typed(step.text, self._there(serving.text()), serves=True))

    def _here(self, text: str) -> str:
        """With this session's ports."""
        return re.sub(rf"\b({'|'.join(map(str, PORTS))})\b", lambda port: str(self._ports[int(port[1])]), text)

    def _there(self, text: str) -> str:
        """What was printed, with the page's ports."""
        for named, port in self._ports.items():
            text = re.sub(rf"\b{port}\b", str(named), text)
        return text

    def _environment(self, text: str) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        port = self._ports[8080 if re.search(r"dynamo[ -]run", text) else 8000]
        found = {
            **plain, "XDG_STATE_HOME": str(self.state), "XDG_RUNTIME_DIR": str(self.state), "DYN_HTTP_PORT": str(port),
            "DYN_GRPC_METRICS_PORT": str(self._ports[8788]),
            "PATH": os.pathsep.join([str(self._programs), sysconfig.get_path("scripts"), plain.get("PATH", "")]),
            "PYTHONPATH": self._path, "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "120",
            "ETCD_LEASE_TTL": "60",  # a machine that is busy with other tests may be slow to renew one
        }  # fmt: skip
        if text.startswith("etcd"):
            found |= self._for_etcd()
        elif "etcd" in self._serving:
            found |= {
                "ETCD_ENDPOINTS": f"http://localhost:{self._ports[2379]}",
                "NATS_SERVER": f"nats://localhost:{self._ports[4222]}",
            }
        return found

    def _for_etcd(self) -> dict[str, str]:
        """A bare `etcd` on this session's ports, in a folder that is gone with it."""
        client, peer = (f"http://127.0.0.1:{self._ports[port]}" for port in (2379, 2380))
        return {
            "ETCD_LISTEN_CLIENT_URLS": client, "ETCD_ADVERTISE_CLIENT_URLS": client, "ETCD_LISTEN_PEER_URLS": peer,
            "ETCD_INITIAL_ADVERTISE_PEER_URLS": peer, "ETCD_INITIAL_CLUSTER": f"default={peer}",
            "ETCD_UNSAFE_NO_FSYNC": "true",
        }  # fmt: skip


def _shims(folder: Path) -> Path:
    """The console scripts, of the code that is tested, whatever is installed."""
    folder.mkdir()
    lines = {name: f'-m {module} "$@"' for name, module in PROGRAMS.items()} | {"python": '"$@"'}
    for name, line in lines.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {line}\n')
        (folder / name).chmod(0o755)
    return folder


@contextlib.contextmanager
def session(model: Path) -> Iterator[Session]:
    """A session whose folder, like everything that it started, is gone afterwards; short, for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="page-"))
    opened = Session(folder, model)
    try:
        yield opened
    finally:
        opened.close()
        shutil.rmtree(folder, ignore_errors=True)
