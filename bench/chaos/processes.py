"""The processes of a run: frontends, workers, etcd and NATS, each through all its lives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.chaos.network import addresses
from bench.chaos.oracle import MIGRATIONS
from bench.chaos.schedule import sort_of
from tests.fixtures_etcd import free_ports
from tests.system.conftest import binary

from dynamo.cli.local import _tether

NAMESPACE: Final = "chaos"
FRONTENDS: Final = ("frontend-1", "frontend-2")
WORKERS: Final = ("worker-1", "worker-2", "worker-3", "worker-4")
OURS: Final = (*WORKERS, *FRONTENDS)
MODES: Final = ("round-robin", "kv", "kv", "power-of-two", "least-loaded")
"""By seed; every other seed has pools as well."""
LEASE: Final = 5.0
GRACE: Final = 30.0
_MOCKER: Final = {
    "speedup_ratio": 0.4, "num_gpu_blocks": 3000, "block_size": 16, "max_num_seqs": 32,
    "dynamo": {"handoff_session_timeout_ms": 5000},
}  # fmt: skip


async def until(what: str, check: Callable[[], Any], within: float) -> Any:
    """Poll until it is true, in a thread; raises `TimeoutError` with `what`."""
    deadline = time.monotonic() + within
    while True:
        with contextlib.suppress(OSError, ValueError):
            if found := await asyncio.to_thread(check):
                return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what}")
        await asyncio.sleep(0.1)


class Part:
    """One of them. `wanted`: it should be running; one that isn't has died by itself."""

    def __init__(self, name: str, argv: list[str], folder: Path, env: dict[str, str], port: int) -> None:
        self.name, self.argv, self.folder, self.port = name, argv, folder, port
        self._env = {**os.environ, **env}
        self.lives = 0
        self.wanted = False
        self.began = 0.0
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def sort(self) -> str:
        return sort_of(self.name)

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    @property
    def log(self) -> Path:
        """Of this life: each has one of its own."""
        return self.folder / f"{self.name}.{self.lives}.log"

    def start(self) -> None:
        self.lives += 1
        self.began = time.monotonic()
        # Tied to this process: whatever ends the run ends all of them.
        tied = [sys.executable, "-I", "-S", _tether.__file__, str(os.getpid()), *self.argv]
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                tied, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        self.wanted = True

    def signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; gone when this returns."""
        self.wanted = False
        self.signal(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait(20)

    async def leave(self, within: float) -> bool:
        """SIGTERM; whether it has gone in time, with exit code 0."""
        self.wanted = False
        self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await until(f"{self.name} has left", lambda: self.code is not None, within)
        return self.code == 0

    def said(self) -> dict[str, Any] | None:
        """Its `ready` line, once it has printed one."""
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("ready "):
                found: dict[str, Any] = json.loads(line.removeprefix("ready "))
                return found
        return None

    def tail(self) -> str:
        """The last lines of its log, in one."""
        return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:])[-400:]


class Site:
    """All parts, by name. Two fixed addresses per process, ports that don't change through its lives."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = folder
        self.etcd_port, self._peer_port, self.nats_port, self.watched_port, *ours = free_ports(4 + len(OURS))
        self.mode = MODES[seed % len(MODES)]
        self.pools = seed % 2 == 1
        """The first worker computes prompts for the others."""
        self.parts: dict[str, Part] = {}
        self._data = 0
        self._add("etcd", [], self.etcd_port)
        self.empty_etcd()
        self._add("nats", self._nats(), self.nats_port)
        for name, port in zip(OURS, ours, strict=True):
            self._add_ours(name, port)

    def links(self, name: str) -> tuple[str, str]:
        """The addresses of NATS and etcd that this part uses."""
        return addresses(OURS.index(name) + 1)

    def of(self, sort: str) -> list[Part]:
        return [part for part in self.parts.values() if part.sort == sort]

    def empty_etcd(self) -> None:
        """Its next life begins without data."""
        self._data += 1
        client, peer = f"http://0.0.0.0:{self.etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        argv = [binary("etcd"), "--data-dir", str(self.folder / f"etcd-{self._data}"), "--unsafe-no-fsync"]
        argv += ["--log-level", "error", "--listen-client-urls", client, "--listen-peer-urls", peer]
        argv += ["--advertise-client-urls", f"http://127.0.0.1:{self.etcd_port}"]
        argv += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self.parts["etcd"].argv = argv

    def _nats(self) -> list[str]:
        return [binary("nats-server"), "-a", "0.0.0.0", "-p", str(self.nats_port), "-m", str(self.watched_port)]

    def _add(self, name: str, argv: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.parts[name] = Part(name, argv, self.folder, env or {}, port)

    def _add_ours(self, name: str, port: int) -> None:
        nats, etcd = self.links(name)
        env = {
            "NATS_SERVER": f"nats://{nats}:{self.nats_port}", "ETCD_ENDPOINTS": f"http://{etcd}:{self.etcd_port}",
            "ETCD_LEASE_TTL": f"{LEASE:g}", "DYN_LOG": "info",
        }  # fmt: skip
        argv = self._frontend(port) if name in FRONTENDS else self._worker(name, port)
        self._add(name, [*argv, "--graceful-shutdown-timeout-secs", f"{GRACE:g}"], port, env)

    def _frontend(self, port: int) -> list[str]:
        argv = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        argv += ["--namespace", NAMESPACE, "--router-mode", self.mode]
        return [*argv, "--migration-limit", str(MIGRATIONS), "--worker-wait-timeout-secs", "15"]

    def _worker(self, name: str, port: int) -> list[str]:
        argv = [sys.executable, "-m", "dynamo.worker", "--engine", "mocker", "--model-name", "m"]
        component, role = "backend", "aggregated"
        if self.pools:
            component, role = ("prefill", "prefill") if name == WORKERS[0] else ("backend", "decode")
        argv += ["--endpoint", f"dyn://{NAMESPACE}.{component}.generate", "--role", role]
        return [*argv, "--system-port", str(port), "--engine-args", json.dumps(_MOCKER)]

    def start(self) -> None:
        """All at once: each waits for what it needs."""
        for part in self.parts.values():
            part.start()

    def close(self) -> None:
        for part in reversed(self.parts.values()):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                part.kill()

    async def ready(self, within: float) -> None:
        """Every part has said that it serves."""
        for part in (self.parts[name] for name in OURS):
            await until(f"{part.name} is ready: {part.tail()}", part.said, within)
