"""Whole frontend processes (over memory, so without workers): ready line, leaving, several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.started import Started, started

pytestmark = pytest.mark.processes
Start = Callable[..., "Started"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `python -m dynamo.frontend` on a free port of loopback."""
    running: list[Started] = []

    def run(*flags: str, **env: str) -> Started:
        argv = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "0", *flags]
        full = {**os.environ, "DYN_DISCOVERY_BACKEND": "mem", **env}
        process = started(argv, full)
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def ready(process: Started) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"ready "), (line, process.stderr and process.stderr.read())
    found: dict[str, Any] = json.loads(line.removeprefix(b"ready "))
    return found


def test_serves_and_leaves_on_sigterm(start: Start) -> None:
    """One ready line; after SIGTERM not ready but still answering, with `Connection: close`; exit code 0."""
    process = start(DYN_HTTP_SHUTDOWN_DELAY_SECS="3")
    url = ready(process)["url"]
    assert httpx.get(f"{url}/health").status_code == 200
    process.send_signal(signal.SIGTERM)
    while httpx.get(f"{url}/health").status_code == 200:
        pass
    answer = httpx.get(f"{url}/health")  # another: of one that came before the signal, only the status is of after it
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert "shutting down" in answer.json()["message"]
    assert process.wait(10) == 0


def test_second_signal_leaves_at_once(start: Start) -> None:
    """Two signals: no waiting."""
    process = start(DYN_HTTP_SHUTDOWN_DELAY_SECS="30")
    url = ready(process)["url"]
    process.send_signal(signal.SIGTERM)
    while httpx.get(f"{url}/health").status_code == 200:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


def test_port_in_use_is_one_sentence(start: Start) -> None:
    """A taken port ends with exit code 1 and says what to do, also with several processes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for flags in ([], ["--workers", "2"]):
            process = start("--http-port", port, *flags)
            _, said = process.communicate(timeout=20)
            assert process.returncode == 1
            assert b"another process listens there" in said
            assert b"Traceback" not in said


def test_several_processes_share_the_port(start: Start) -> None:
    """`--workers 2`: one URL, a system port with everybody's health, a dead child is replaced, nothing is left."""
    process = start("--workers", "2", "--system-port", "0", DYN_HTTP_SHUTDOWN_DELAY_SECS="0")
    said = ready(process)
    for _ in range(10):
        assert httpx.get(f"{said['url']}/live").status_code == 200
        httpx.post(f"{said['url']}/v1/completions", json={"model": "m", "prompt": "x"})
    system = said["system_url"]
    health = httpx.get(f"{system}/health").json()
    assert [one["status"] for one in health["processes"]] == ["healthy", "healthy"]
    assert _requests(system) == 10
    children = _children(process.pid)
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)
    end = time.monotonic() + 20
    while len(now := _children(process.pid)) < 2 or children[0] in now or not _all_healthy(system):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert _requests(system) == 10
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 0
    assert not any(_alive(pid) for pid in now)


def test_children_leave_with_a_killed_supervisor(start: Start) -> None:
    """kill -9 of the supervisor leaves no process behind."""
    process = start("--workers", "2", DYN_HTTP_SHUTDOWN_DELAY_SECS="0")
    ready(process)
    children = _children(process.pid)
    assert len(children) == 2
    process.kill()
    process.wait(5)
    end = time.monotonic() + 15
    while any(_alive(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)


def _requests(system: str) -> float:
    lines = httpx.get(f"{system}/metrics").text.splitlines()
    return sum(float(x.rpartition(" ")[2]) for x in lines if x.startswith("dynamo_frontend_requests_total{"))


def _all_healthy(system: str) -> bool:
    found = httpx.get(f"{system}/health").json()["processes"]
    return all(one["status"] == "healthy" for one in found)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(x) for x in file.read().split()]


def _alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_grpc_beside_http(start: Start) -> None:
    """The ready line has both addresses; what KServe's port can't be is said before anything is served."""
    process = start("--kserve-grpc-server", "--grpc-metrics-port", "0")
    said = ready(process)
    assert httpx.get(f"{said['url']}/health").status_code == 200
    host, port = said["grpc"].split(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    assert said["url"].rpartition(":")[2] != port
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    several = start("--workers", "2", DYN_KSERVE_GRPC_SERVER="true")
    _, error = several.communicate(timeout=20)
    assert several.returncode == 2
    assert b"--kserve-grpc-server is served by one process" in error
