"""`dynamo top` and `dynamo console` on a real frontend, and on what is none; `dynamo example`."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from tests.frontend.conftest import Site

from dynamo.cli.main import dynamo

ROOT = Path(__file__).parents[3]


def top(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dynamo.cli", "top", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.processes(seconds=8)
def test_a_frontend_under_load(served: Site) -> None:
    """Rates, times and the worker, while requests come; as a table in 80 columns, too."""
    model = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
    over = threading.Event()

    def ask() -> None:
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "a b c"}]}
        with httpx.Client(timeout=10) as client:
            while not over.wait(0.02):
                client.post(f"{served.url}/v1/chat/completions", json=body).raise_for_status()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        seen = json.loads(top(f"{served.url}/v1", "--once", "--interval", "1", "-o", "json").stdout)
        table = top(served.url, "--interval", "1")
    finally:
        over.set()
        asking.join()
    (figures,) = [each for each in seen["models"] if each["model"] == model]
    assert figures["ready"]
    assert figures["requests"] > 1
    assert figures["tokens"] > figures["requests"]
    assert figures["ttft_p50"] > 0
    assert [worker["state"] for worker in seen["workers"]] == ["ready"]
    assert table.returncode == 0, table.stderr
    assert "TTFT p50" in table.stdout
    assert all(len(line) <= 80 for line in table.stdout.splitlines())


WORST = {
    "nested": b'{"workers":' + b"[" * 100_000,
    "huge": b'{"workers": [{"in_flight": ' + b"9" * 9000 + b"}]}",
    "number": b'{"workers": [{"kv_usage": 1e308, "id": "w"}], "total": 1}',
    "kinds": b'{"workers": [{"id": 7}], "total": "many"}',
    "bytes": b'{"workers": [{"id": "\xff\xfe"}]}',
}


class Other(BaseHTTPRequestHandler):
    """A server that has no such route, asks for a key, never ends, or answers with the worst."""

    def do_GET(self) -> None:
        kind = self.path.split("/")[1]
        self.send_response({"keys": 401, "none": 404}.get(kind, 200))
        if kind == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if kind == "endless":
            for _ in range(64):
                self.wfile.write(b"x" * (1 << 20))
        elif kind == "packed":
            self.wfile.write(gzip.compress(b"x" * (1 << 20)))
        elif kind == "infinite":
            self.wfile.write(b'dynamo_frontend_inflight_requests{model="m"} +Inf\n')
        elif self.path.endswith("/metrics"):
            self.wfile.write(b'dynamo_frontend_inflight_requests{model="m"} 7\n')
        else:
            self.wfile.write(WORST[kind])

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def other() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/none", "answers 404"),
        ("/keys", "set OPENAI_API_KEY"),
        ("/endless", "more than 16 MB"),
        ("/infinite", "is inf"),
    ],
)
def test_what_is_no_frontend(other: str, path: str, says: str) -> None:
    """Exit code 1, and why."""
    done = CliRunner().invoke(dynamo, ["top", other + path, "--interval", "0.5"], standalone_mode=False)
    assert says in done.output
    assert isinstance(done.exception, SystemExit)
    assert done.exception.code == 1


@pytest.mark.parametrize("kind", [*WORST, "packed"])
def test_answers_of_the_worst(other: str, kind: str) -> None:
    """Workers that can't be read are left out; nothing is unpacked."""
    done = CliRunner().invoke(dynamo, ["top", f"{other}/{kind}", "--interval", "0.5"], standalone_mode=False)
    assert (done.exit_code, done.exception) == (0, None), done.output
    assert ("no model" if kind == "packed" else " 7 ") in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())


def test_nobody_answers_and_nothing_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "no answer from" in CliRunner().invoke(dynamo, ["top", "http://127.0.0.1:9", "-n", "0.5"]).output
    done = CliRunner().invoke(dynamo, ["top"])
    assert (done.exit_code, "dynamo up FILE" in done.output) == (1, True)


def test_examples_are_listed_and_printed() -> None:
    """By their names with or without folder; a near one is named."""
    listed = CliRunner().invoke(dynamo, ["example"])
    assert listed.exit_code == 0
    assert all(len(line) <= 80 for line in listed.output.splitlines())
    for file in (ROOT / "examples").rglob("*.yaml"):
        name = file.relative_to(ROOT / "examples").as_posix().removesuffix(".yaml")
        assert f"{name} " in listed.output
        assert CliRunner().invoke(dynamo, ["example", name]).output == file.read_text()
    assert CliRunner().invoke(dynamo, ["example", "vllm"]).output == (ROOT / "examples/engines/vllm.yaml").read_text()
    wrong = CliRunner().invoke(dynamo, ["example", "quikstart"])
    assert (wrong.exit_code, "did you mean quickstart?" in wrong.output) == (1, True)


@pytest.mark.processes(seconds=4)
def test_where_the_console_is(served: Site, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address alone, for a shell; who has none, and a machine on which nothing is up, is told what to do."""
    done = CliRunner().invoke(dynamo, ["console", f"{served.url}/v1"])
    assert (done.exit_code, done.output) == (0, f"{served.url}/\n")
    none = CliRunner().invoke(dynamo, ["console", f"{other}/none"])
    assert (none.exit_code, "dynamo ps" in none.output) == (1, True), none.output
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    nothing = CliRunner().invoke(dynamo, ["console"])
    assert (nothing.exit_code, "dynamo up FILE" in nothing.output) == (1, True), nothing.output
