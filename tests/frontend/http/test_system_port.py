"""What is for those who run a frontend: a port of its own, whatever happens to the one of clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.started import Started, started

pytestmark = pytest.mark.processes
Start = Callable[..., dict[str, Any]]
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
SYSTEM = ("/metrics", "/version", "/openapi.json", "/docs", "/busy_threshold")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `python -m dynamo.frontend` over memory, and read its ready line."""
    running: list[Started] = []

    def run(*flags: str, **env: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "0", *flags]
        full = {**os.environ, "DYN_DISCOVERY_BACKEND": "mem", "DYN_HTTP_SHUTDOWN_DELAY_SECS": "0", **env}
        running.append(started(argv, full))
        assert running[-1].stdout is not None
        line = running[-1].stdout.readline()
        assert line.startswith(b"ready "), running[-1].communicate(timeout=10)
        said: dict[str, Any] = json.loads(line.removeprefix(b"ready "))
        return said

    yield run
    for process in running:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        process.communicate()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=10)


def test_one_process_has_a_system_port(start: Start) -> None:
    """`--system-port` without `--workers`, by its variable: probes, figures, health in detail; nothing of models."""
    said = start(DYN_FRONTEND_SYSTEM_PORT="0")
    system = said["system_url"]
    assert httpx.get(f"{system}/live").json()["status"] == "live"
    health = httpx.get(f"{system}/health")
    assert (health.status_code, health.json()["instances"]) == (200, [])
    figures = httpx.get(f"{system}/metrics")
    assert figures.headers["content-type"].startswith("text/plain; version=")
    assert "dynamo_frontend_" in figures.text
    assert httpx.get(f"{system}/openapi.json").json()["openapi"].startswith("3.")
    for path in ("/v1/models", "/nowhere", "/tokenize"):
        assert httpx.get(f"{system}{path}").status_code == 404
    change = {"model": "m", "active_decode_blocks_threshold": 0.0}
    assert httpx.post(f"{system}/busy_threshold", json=change, headers={"x-envoy-a": "1"}).status_code == 403
    assert httpx.post(f"{system}/busy_threshold", json=change).status_code == 404


@pytest.mark.parametrize("workers", ["1", "2"])
def test_routes_can_be_taken_off_the_port_of_clients(start: Start, workers: str) -> None:
    """`--no-public-system-routes`: unknown routes there, a word of health, all of it on the system port."""
    said = start("--no-public-system-routes", "--system-port", "0", "--workers", workers)
    for path in (*SYSTEM, "/busy_threshold/m", "/%6detrics"):
        assert httpx.get(f"{said['url']}{path}").status_code == 404, path
    assert httpx.delete(f"{said['url']}/busy_threshold/m").status_code == 404
    assert httpx.get(f"{said['url']}/live").status_code == 200
    assert set(httpx.get(f"{said['url']}/health").json()) == {"status", "message"}
    assert httpx.get(f"{said['url']}/v1/models").status_code == 200
    for path in SYSTEM:
        assert httpx.get(f"{said['system_url']}{path}").status_code == 200, path
    assert "message" in httpx.get(f"{said['system_url']}/health").json() or workers == "2"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_system_port_answers_under_any_flood(start: Start, workers: str) -> None:
    """A thousand clients that hold every connection there is, with half requests, are no reason for a restart."""
    said = start("--system-port", "0", "--workers", workers, "--max-connections", "20", "--header-timeout-secs", "60")
    halves = (b"", b"GET /li", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{", LIVE)
    stop = threading.Event()

    def flood() -> None:
        held: list[socket.socket] = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                held.append(connect(said["url"]))
                held[-1].sendall(halves[len(held) % 4])
            if len(held) > 200:
                held.pop(0).close()
        for one in held:
            one.close()

    floods = [threading.Thread(target=flood) for _ in range(4)]
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(said["system_url"])) for _ in range(150)]
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(b"GET /live HT")
        for thread in floods:
            thread.start()
        try:
            for _ in range(20):
                for path in ("/live", "/health", "/metrics"):
                    assert httpx.get(f"{said['system_url']}{path}", timeout=10).status_code == 200, path
        finally:
            stop.set()
            for thread in floods:
                thread.join(10)


def test_a_taken_system_port_is_one_sentence() -> None:
    """It ends the process, and names the flag."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", "0"]
        env = {**os.environ, "DYN_DISCOVERY_BACKEND": "mem"}
        made = subprocess.run([*argv, "--system-port", port], capture_output=True, env=env, timeout=30, check=False)
    assert made.returncode == 1
    assert b"--system-port" in made.stderr
    assert b"Traceback" not in made.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_system_port_explains_requests_of_every_process(start: Start, workers: str) -> None:
    """Whichever process had one; an id that would be more than a path is none that is known."""
    said = start("--no-public-system-routes", "--system-port", "0", "--workers", workers)
    body = {"model": "nobody", "messages": [{"role": "user", "content": "a"}]}
    for number in range(8):  # a connection each, which the kernel spreads
        answer = httpx.post(f"{said['url']}/v1/chat/completions", json=body, headers={"x-request-id": f"id/{number}"})
        assert answer.is_error
    assert httpx.get(f"{said['url']}/requests/id%2F0").status_code == 404
    for number in range(8):
        fields = httpx.get(f"{said['system_url']}/requests/id%2F{number}").json()
        assert (fields["id"], fields["status"]) == (f"id/{number}", answer.status_code)
    injected = httpx.get(f"{said['system_url']}/requests/x%20HTTP%2F1.0%0D%0Aa:b%0D%0A%0D%0AGET%20%2Fmetrics")
    assert (injected.status_code, list(injected.json())) == (404, ["error"])
    assert httpx.get(f"{said['system_url']}/requests/{'x' * 5000}").status_code == 404
    assert httpx.get(f"{said['url']}/requests").status_code == 404
    assert httpx.get(f"{said['system_url']}/requests").json() == {"running": []}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_tenants_use_is_on_the_system_port_only(start: Start, workers: str, tmp_path: Path) -> None:
    """A tenant's key opens `/metrics` on the port of clients, and shows nothing of other tenants there."""
    (tmp_path / "keys").write_text("sk-a tenant=team-a\nsk-b tenant=team-b\n")
    said = start("--api-keys-file", str(tmp_path / "keys"), "--system-port", "0", "--workers", workers)
    for key in ("sk-a", "sk-b", "sk-a"):
        asked = {"model": "nobody", "prompt": "a"}
        answer = httpx.post(f"{said['url']}/v1/completions", json=asked, headers={"authorization": f"Bearer {key}"})
        assert answer.is_error
    shown = httpx.get(f"{said['system_url']}/metrics").text
    name = "dynamo_frontend_tenant_requests_total"
    failed = {
        sample.labels["tenant"]: sample.value
        for family in text_string_to_metric_families(shown)
        for sample in family.samples
        if sample.name == name and sample.labels["status"] == "error"
    }
    assert failed == {"team-a": 2, "team-b": 1}
    public = httpx.get(f"{said['url']}/metrics", headers={"x-api-key": "sk-b"})
    assert public.status_code == 200
    assert "team-" not in public.text
