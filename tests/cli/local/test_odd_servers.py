"""Servers that are wrong, behind engine `openai`: `dynamo ps` and `doctor` name each, with the server's own answer."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.waiting import eventually

from dynamo.cli.diagnosis.local_pipeline import LocalFacts, LocalPart, local_findings
from dynamo.cli.local.facts import worker_health
from dynamo.cli.local.facts.worker_health import AWAY, doing, is_stopped, read, seen
from dynamo.cli.local.state import FRONTEND, PartState
from dynamo.runtime.http.system_server import BUS_AWAY

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

SERVER: Final = Path(__file__).with_name("odd_server.py")
COMPONENT: Final = """
    - name: {name}
      engine: openai
      command: [{python}, {server}, {name}, --port, "8000"]
      engineArgs: {{ready_secs: {secs}, models_secs: 2}}
"""
NAMED: Final = {
    "mute": "which does not answer",
    "failing": "which answers 500 at /v1/models",
    "counting": "counts 900 tokens in an answer that has 8 at most",
    "shrinking": "has a context of 512 tokens now, and 4096 were announced",
}
"""What is said of each, within its time limit."""


def pipeline(**seconds: int) -> str:
    head = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: odd}\nspec:\n  components:"
    return head + "".join(
        COMPONENT.format(name=name, python=sys.executable, server=SERVER, secs=secs) for name, secs in seconds.items()
    )


def ask(url: str) -> None:
    body = json.dumps({"model": "odd", "prompt": "x", "max_tokens": 8}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


@pytest.mark.processes
@pytest.mark.servers
def test_each_is_named(place: Workplace) -> None:
    """One that is never ready, one that answers 500, one whose counts and one whose context are not so; the rest of
    the pipeline serves."""
    up = place.up(place.write("odd", text=pipeline(mute=600, failing=600, counting=600, shrinking=600)))
    place.wait_until(lambda: sum(part["state"] == "ready" for part in place.parts("odd")) == 5, "two workers serve", 90)
    url = f"http://127.0.0.1:{next(part['ports']['http'] for part in place.parts('odd') if part['kind'] == 'frontend')}"
    for _ in range(8):
        ask(f"{url}/v1")

    def listed() -> dict[str, dict[str, Any]]:
        return {part["component"]: part for part in json.loads(place.run("ps", "-o", "json").stdout)[0]["parts"]}

    place.wait_until(lambda: all(text in listed()[name]["reason"] for name, text in NAMED.items()), "all are named", 90)
    states = {name: part["state"] for name, part in listed().items() if name in NAMED}
    assert states == {"mute": "starting", "failing": "starting", "counting": "ready", "shrinking": AWAY}
    findings = json.loads(place.run("doctor", "odd", "-o", "json").stdout)["findings"]
    causes = " ".join(finding["cause"] for finding in findings)
    assert [text for text in NAMED.values() if text not in causes] == []
    assert {finding["code"] for finding in findings} == {"starting", "amiss", "not-routed"}
    assert up.process.poll() is None


@pytest.mark.processes
@pytest.mark.servers
def test_the_time_limit_ends_the_wait(place: Workplace) -> None:
    """`ready_secs` over: the worker ends, and its last words say what the server answered."""
    up = place.up(place.write("odd", text=pipeline(failing=2)))
    assert "answers 500 at /v1/models after 2 s" in up.wait_for("failing-0: stopped")


def test_answers_of_health_are_read() -> None:
    """Reasons where it is away, notes always; what has another form says nothing."""
    assert read(200, {"reasons": ["x"], "notes": ["y"]}) == (False, "y")
    assert read(503, {"reasons": ["x", 5], "notes": ["y"]}) == (True, "x; y")
    assert read(503, []) == (True, "")
    assert len(read(503, {"reasons": ["x" * 5000]}).why) == 600


def test_a_worker_that_hangs_is_away(tmp_path: Path) -> None:
    """No answer is one, too; parts that don't serve keep what is known of them."""
    gone = PartState("w-0", "worker", "w", "ready", 0.0, ports={"system": 1})
    failed = PartState("w-1", "worker", "w", "failed", 0.0, reason="exited")
    log = tmp_path / "w-2.log"
    log.write_text("2026-01-01T00:00:00.000+00:00 10:00:00 INFO dynamo.worker: loading\nhalf a li")
    starting = PartState("w-2", "worker", "w", "starting", 0.0, log=str(log))
    shown = seen([gone, failed, starting])
    assert [part.state for part in shown] == [AWAY, "failed", "starting"]
    assert "gives no answer" in shown[0].reason
    assert [part.reason for part in shown[1:]] == ["exited", "loading"]
    assert (seen([]), doing(tmp_path / "none")) == ([], "")


def test_a_part_that_is_stopped_is_named(tmp_path: Path) -> None:
    """Whoever stops a process (SIGSTOP) leaves it as it was: it takes connections, and answers none of them."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        frontend = PartState("frontend-0", FRONTEND, "", "ready", 0.0, pid=process.pid)
        assert [part.state for part in seen([frontend])] == ["ready"]
        process.send_signal(signal.SIGSTOP)
        eventually("it is stopped", lambda: is_stopped(process.pid))
        (shown,) = seen([frontend])
        process.kill()
    assert shown.state == AWAY
    part = LocalPart("frontend-0", shown.state, shown.reason, kind=FRONTEND, stopped=process.pid)
    facts = LocalFacts("p", "f", True, (part, LocalPart("worker-0", "ready", kind="worker")))
    (finding,) = local_findings(facts)
    assert (finding.code, finding.mend) == ("stopped", f"kill -CONT {process.pid}")
    assert not is_stopped(process.pid)


def test_a_frontend_whose_loop_is_blocked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel takes the connection; one that speaks TLS, or isn't here, is no such one."""
    monkeypatch.setattr(worker_health, "LIVE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        blocked = PartState("frontend-0", FRONTEND, "", "ready", 0.0, ports={"http": port})
        (shown,) = seen([blocked])
        assert (shown.state, "event loop is blocked" in shown.reason) == (AWAY, True)
        (finding,) = local_findings(
            LocalFacts(
                "p",
                "f",
                True,
                (
                    LocalPart("frontend-0", shown.state, shown.reason, kind=FRONTEND),
                    LocalPart("w", "ready", kind="worker"),
                ),
            )
        )
        assert (finding.code, "dynamo logs p/frontend-0" in finding.mend) == ("frontend-silent", True)
    assert worker_health.ask_frontend(port) is None


def test_a_pipeline_without_workers_and_one_without_its_bus() -> None:
    """Both serve nobody, and no part of them has failed."""
    alone = LocalFacts("p", "f.yaml", True, (LocalPart("frontend-0", "ready", kind=FRONTEND),))
    assert [(finding.code, "f.yaml" in finding.mend) for finding in local_findings(alone)] == [("no-workers", True)]
    away = LocalPart("worker-0", AWAY, BUS_AWAY, kind="worker")
    (finding,) = local_findings(LocalFacts("p", "f.yaml", True, (away,)))
    assert (finding.code, "NATS_SERVER" in finding.mend) == ("bus-away", True)


def test_findings_of_parts() -> None:
    """What is away is an error, what is amiss a warning."""
    parts = (LocalPart("a", "ready"), LocalPart("b", "ready", "lies"), LocalPart("c", AWAY, "503"))
    found = list(local_findings(LocalFacts("p", "f", True, parts)))
    assert [(finding.code, finding.cause, finding.weight.value) for finding in found] == [
        ("amiss", "lies", "warning"), ("not-routed", "503", "error"),
    ]  # fmt: skip
