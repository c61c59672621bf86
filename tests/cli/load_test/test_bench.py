"""`dynamo bench` against a real frontend over HTTP, and against servers that misbehave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from tests.frontend.conftest import Site


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dynamo.cli", "bench", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **environment}, check=False
    )


@pytest.mark.processes(seconds=8)
def test_a_frontend_is_measured(served: Site) -> None:
    """Chat and completions, at once and by rate: every request is counted, and each token that usage has."""
    chat = bench(served.url, "--requests", "20", "--output-tokens", "5", "--target-rate", "1000", "-o", "json")
    measured = json.loads(chat.stdout)
    assert (chat.returncode, measured["requests"], measured["failed"]) == (0, 20, 0)
    assert measured["output_tokens"] == 100
    assert 0 < measured["ttft_ms"]["p50"] <= measured["request_ms"]["p99"]
    assert measured["servers_for_target"] >= 1
    text = bench(f"{served.url}/v1", "--requests", "10", "--rate", "200", "--endpoint", "completions", "--ttft-ms", "1")
    assert "10 answered, 0 failed" in text.stdout
    assert "within the targets" in text.stdout
    assert all(len(line) <= 80 for line in text.stdout.splitlines())


class Wrong(BaseHTTPRequestHandler):
    """A server that refuses, breaks its streams, or sends what is no JSON, by the model's name."""

    keys: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.keys.append(self.headers["authorization"])
        if body["model"] == "refused":
            self.send_response(429)
            self.end_headers()
            self.wfile.write(b'{"error": "too many"}')
            return
        self.send_response(200)
        self.end_headers()
        if body["model"] == "endless":
            self.wfile.write(b"data: " + b"x" * (2 << 20))
        elif body["model"] == "silent":
            threading.Event().wait(20)
        else:
            self.wfile.write(b"data: no json\n\n")

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def wrong() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Wrong)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.processes(seconds=8)
def test_servers_that_fail_are_told(wrong: str) -> None:
    """Each failure is counted with its reason; the key leaves by its header only."""
    for model, says in (("refused", "429"), ("endless", "larger than"), ("broken", "JSONDecodeError")):
        done = bench(wrong, "--model", model, "--requests", "3", KEY="s3cret", OPENAI_API_KEY="no")
        assert (done.returncode, "3 failed" in done.stdout, says in done.stdout) == (1, True, True)
        assert "s3cret" not in done.stdout + done.stderr
    bench(wrong, "--model", "refused", "--requests", "1", "--key-env", "KEY", KEY="s3cret")
    assert Wrong.keys[-1] == "Bearer s3cret"
    nobody = bench("http://127.0.0.1:1")
    assert (nobody.returncode, "is a server there" in nobody.stderr) == (1, True)
    assert bench("ftp://x").returncode == 2


@pytest.mark.processes
def test_an_interrupt_prints_what_was_measured(wrong: str) -> None:
    """Ctrl-C under requests that hang: the report at once, and 130."""
    command = [sys.executable, "-m", "dynamo.cli", "bench", wrong, "--model", "silent", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        count = len(Wrong.keys)
        until_asked = threading.Event()
        while len(Wrong.keys) < count + 8 and not until_asked.wait(0.05):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(out)["requests"] == 0
