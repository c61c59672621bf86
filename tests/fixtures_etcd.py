"""A real etcd for tests: one server per test process, or one of a test's own that it may kill (`conftest.py`)."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dynamo.runtime.config import EtcdConfig


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system hands out by itself: they stay free while a
    server is down (else another process, or a client's own retries, may get them)."""
    numbers: list[int] = []
    while len(numbers) < count:
        port = random.randrange(12_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            if port not in numbers:
                numbers.append(port)
    return numbers


CHOSEN: Final = "DYNAMO_TEST_ETCD"
"""Names another etcd than the Python environment's: `make e2e` has the one of the chart, which keeps users apart."""


def _is_stopped(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TX"
    except FileNotFoundError:  # it has ended
        return True


def _binary() -> str:
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    binary = os.environ.get(CHOSEN) or shutil.which("etcd", path=path)
    assert binary, "etcd is not installed; it comes with the development requirements"
    return binary


class EtcdServer:
    """One etcd process on ports of its own; it can be killed, stopped and restarted, with its data or empty."""

    def __init__(self, *flags: str, scheme: str = "http") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="etcd-test-"))
        self._flags, self._scheme = flags, scheme
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self.pick_ports()

    def pick_ports(self) -> None:
        self.port, self._peer_port, self._health_port = free_ports(3)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def health_url(self) -> str:
        """Where it says how it is, to whoever asks."""
        return f"http://127.0.0.1:{self._health_port}"

    def memory_mb(self) -> int:
        """What the kernel can't take back from it: without its file, which is mapped."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) // 1024

    def config(self, **more: object) -> EtcdConfig:
        return EtcdConfig(**{"endpoints": (self.url,), "lease_ttl": 2.0, "start_limit": 15.0, **more})  # type: ignore[arg-type]

    def start(self, *, empty: bool = False) -> None:
        """Start it; `empty` gives it a new data directory, else it has the one of before."""
        if empty or not self._lives:
            self._lives += 1
        peer = f"http://127.0.0.1:{self._peer_port}"
        argv = [_binary(), "--data-dir", str(self.folder / f"data-{self._lives}"), "--unsafe-no-fsync"]
        argv += ["--log-level", "error", "--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        argv += ["--listen-metrics-urls", f"http://127.0.0.1:{self._health_port}"]
        argv += ["--initial-cluster", f"default={peer}", *self._flags]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self, within: float = 60.0) -> None:
        """Return when it serves: one that is killed before has half a data directory, and never serves again."""
        deadline = time.monotonic() + within
        while '"true"' not in (health := self._health()):
            assert self._process is not None
            assert self._process.poll() is None, f"etcd ended: {self.log()}"
            assert time.monotonic() < deadline, f"etcd did not start: its health is {health}; {self.log()}"
            time.sleep(0.02)

    def _health(self) -> str:
        """What it says of itself, or why it says nothing."""
        connection = http.client.HTTPConnection("127.0.0.1", self._health_port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().read(1000).decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        finally:
            connection.close()

    def log(self) -> str:
        return (self.folder / "log").read_text()[-2000:]

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP, and still when this returns: a thread that runs meanwhile may answer one more question."""
        self.signal(signal.SIGSTOP)
        assert self._process is not None
        threads, deadline = Path(f"/proc/{self._process.pid}/task"), time.monotonic() + 10
        while any(not _is_stopped(thread) for thread in threads.iterdir()):
            assert time.monotonic() < deadline, "etcd still runs after SIGSTOP"
            time.sleep(0.001)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[EtcdServer]:
        """One that serves, and its end."""
        server = cls()
        try:
            server.start()
            server.wait()
            yield server
        finally:
            server.close()
