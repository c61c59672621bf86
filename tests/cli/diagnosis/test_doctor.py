"""`dynamo doctor` as a shell sees it, and what it asks of a hub."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamo.cli.diagnosis.findings import Finding, as_lines, report_of
from dynamo.cli.local.facts.hub import ask
from dynamo.cli.main import dynamo

SECRET = "hf_secret_of_a_test"


class _Hub(BaseHTTPRequestHandler):
    """A hub that refuses tokens, or points elsewhere."""

    seen: list[str]

    def do_GET(self) -> None:
        type(self).seen.append(f"{self.path} {self.headers.get('Authorization')}")
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
        else:
            self.send_response(401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def hub() -> Iterator[str]:
    _Hub.seen = []
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refused_token_is_said_and_never_shown(hub: str, tmp_path: Path) -> None:
    """Exit code 1, and the token stands nowhere."""
    environment = {"HF_ENDPOINT": hub, "HF_TOKEN": SECRET, "XDG_STATE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    done = CliRunner().invoke(dynamo, ["doctor", "-o", "json"], env=environment)
    assert done.exit_code == 1, done.output
    assert "bad-token" in {finding["code"] for finding in json.loads(done.stdout)["findings"]}
    assert SECRET not in done.output


def test_token_follows_no_redirect(hub: str) -> None:
    """Whoever the hub points to doesn't get it."""
    ask({"HF_ENDPOINT": f"{hub}/moved"}, SECRET)
    assert [line.split()[0] for line in _Hub.seen] == ["/moved/api/whoami-v2"]


@pytest.mark.parametrize("token", ["bad\ntoken", "tokén\u2028"])
def test_token_that_can_not_be_sent(hub: str, token: str) -> None:
    """The error doesn't quote it."""
    fact = ask({"HF_ENDPOINT": hub}, token)
    assert fact.error
    assert "tok" not in fact.error.replace("the token", "")


def test_unknown_pipeline_is_not_looked_at(tmp_path: Path) -> None:
    """Exit code 2: there was nothing to look at."""
    done = CliRunner().invoke(dynamo, ["doctor", "nobody"], env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.exit_code, "nobody" in done.output) == (2, True)


def test_no_cluster_is_not_looked_at(tmp_path: Path) -> None:
    """Exit code 2, with the sentence that every command of a cluster has."""
    done = CliRunner().invoke(dynamo, ["doctor", "--cluster", "--kubeconfig", str(tmp_path / "none")])
    assert (done.exit_code, "there is no kubeconfig" in " ".join(done.output.split())) == (2, True)


def test_a_machine_without_a_kubernetes_client_is_looked_at(tmp_path: Path) -> None:
    """As one is that `pip install 'dynamo-pipelines[vllm]'` made: only `--cluster` needs the client."""
    program = "import sys; sys.modules['kubernetes'] = None; from dynamo.cli.main import main; main(sys.argv[1:])"

    def told(*words: str) -> str:
        argv = [sys.executable, "-c", program, "doctor", "--offline", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        return done.stdout + done.stderr

    assert "looked at: Python, PATH" in " ".join(told().split())
    assert "kubernetes is not installed" in told("--cluster")


def test_pipeline_that_ended_says_its_last_error(tmp_path: Path) -> None:
    """The log of the last run is read from its end."""
    logs = tmp_path / "dynamo" / "llama" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-0.log").write_text("2026-11-21T10:00:00.000+00:00 10:00:00 ERROR dynamo.worker: the card burns\n")
    done = CliRunner().invoke(dynamo, ["doctor", "llama"], env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.exit_code, "the card burns" in done.output) == (1, True)


def test_lines_fit_a_terminal() -> None:
    """80 columns, no control characters, and no end of findings."""
    hostile = [Finding(f"c{n}", "what\x1b[2J " + "word " * 400, "cause", "mend") for n in range(500)]
    lines = as_lines(report_of(["all"], hostile))
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert len(lines) < 600
