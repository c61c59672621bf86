"""A user's day with `dynamo` on a cluster: apply, status, logs, a port, delete, install again."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from e2e.cli.cluster_page import page, snapshots
from e2e.cli.shell import Terminal
from e2e.cluster.cluster import Cluster, wait_for
from e2e.cluster.installation import Platform
from e2e.kind.places import REPOSITORY
from e2e.namespace.namespace import Namespace

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND

EXAMPLE = str(REPOSITORY / "examples" / "mocker.yaml")
STARTED_SECONDS = 120


@pytest.fixture
def terminal(cluster: Cluster, tmp_path: Path) -> Terminal:
    """With the cluster's own kubeconfig."""
    return Terminal(config=cluster.kubeconfig, home=tmp_path)


@contextmanager
def running(terminal: Terminal, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until Ctrl-C, which ends it with 130 and without a traceback."""
    process = terminal.start(*words)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in stderr
    finally:
        process.kill()
        process.wait(10)


def first_line(process: subprocess.Popen[str], part: str = "") -> str:
    """The next line of output that holds `part`."""
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return line.strip()
    raise AssertionError(f"it ended: {process.communicate()}")


def test_from_a_file_to_an_answer(namespace: Namespace, terminal: Terminal) -> None:
    """`apply --wait` ends when it serves; the curl line that it prints answers through `get-url --port-forward`."""
    place = ("-n", namespace.name)
    applied = terminal.run("apply", EXAMPLE, *place, "--wait", "--timeout", f"{STARTED_SECONDS}s")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    assert "frontend: ready after" in applied.stdout
    assert f"url    http://mocker-frontend.{namespace.name}.svc:8000/v1   (inside the cluster)" in applied.stdout
    curl = next(line for line in applied.stdout.splitlines() if line.startswith("curl "))

    shown = terminal.run("status", "mocker", *place)
    assert shown.returncode == 0
    assert re.search(r"worker +ready +[0-9a-f]{8} +\d of \d ready", shown.stdout)
    listed = json.loads(terminal.run("status", *place, "-o", "json").stdout)
    assert [item["metadata"]["name"] for item in listed["items"]] == ["mocker"]

    refused = terminal.run("get-url", "mocker", *place)
    assert (refused.returncode, refused.stdout) == (1, "")
    with running(terminal, "get-url", "mocker", *place, "--port-forward", "--port", "0") as door:
        url = first_line(door)
        pasted = curl.replace("http://127.0.0.1:8000", url).replace("curl", "curl --noproxy '*' --silent", 1)
        for _ in range(3):
            done = subprocess.run(shlex.split(pasted), capture_output=True, text=True, timeout=60, check=True)
            assert done.stdout.rstrip().endswith("data: [DONE]")

    gone = terminal.run("delete", "mocker", *place, "--timeout", "120s")
    assert gone.returncode == 0, gone.stderr
    assert namespace.list("v1/Pod") == []


@pytest.mark.full
def test_top_explain_and_the_page_of_the_cluster(namespace: Namespace, terminal: Terminal) -> None:
    """All frontends of a pipeline are asked, whichever had the request; the page has what the status has."""
    spec = {"replicas": 2, "frontend": {"replicas": 2}, "components": [{"engine": "mocker"}]}
    namespace.apply({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "seen"}, "spec": spec})
    namespace.wait_ready("seen")
    place = ("--pipeline", "seen", "--namespace", namespace.name)
    with running(terminal, "get-url", "seen", "-n", namespace.name, "--port-forward", "--port", "0") as door:
        url = first_line(door)
        model = namespace.pipeline("seen")["status"]["model"]
        body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
        headers = {"x-request-id": "asked-by-a-test"}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code == 200
    told = terminal.run("explain", "asked-by-a-test", *place, "-o", "json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["output_tokens"] == 4
    assert "knows no such request" in terminal.run("explain", "asked-by-nobody", *place).stderr
    seen = terminal.run("top", "--once", "-o", "json", *place)
    assert seen.returncode == 0, seen.stderr
    load = json.loads(seen.stdout)
    assert (load["frontends"], load["unanswered"], load["workers_total"]) == (2, [], 2)
    with page(terminal, "-n", namespace.name) as (address, key):
        (row,) = next(snapshots(address, key))["pipelines"]
        assert (row["name"], row["state"], row["available"], row["wanted"]) == ("seen", "ready", 2, 2)


def test_logs_of_pods_that_come_later(namespace: Namespace, terminal: Terminal) -> None:
    """What is there, merged; with -f also the pods that a scaling brings."""
    place = ("-n", namespace.name)
    namespace.apply(Path(EXAMPLE))
    namespace.wait_ready("mocker")
    past = terminal.run("logs", "mocker", *place)
    assert past.returncode == 0, past.stderr
    assert {line.partition("-")[0] for line in past.stdout.splitlines()} >= {"frontend", "worker"}
    (only,) = terminal.run("logs", "mocker/frontend", *place, "--tail", "1").stdout.splitlines()
    assert " | " not in only
    before = {pod["metadata"]["name"] for pod in namespace.list("v1/Pod")}
    with running(terminal, "logs", "mocker/worker", *place, "-f", "-t") as following:
        first_line(following)
        namespace.kubectl("scale", "dp/mocker", "--replicas=5")
        names = wait_for("a new pod", lambda: {_name(pod) for pod in namespace.list("v1/Pod")} - before, 30)
        new = min(names).removeprefix("mocker-")
        assert f"{new} | " in first_line(following, f"{new} | ")


def _name(pod: dict[str, dict[str, str]]) -> str:
    return pod["metadata"]["name"]


def test_what_cannot_start_is_named(namespace: Namespace, terminal: Terminal) -> None:
    """A node that nobody has: the wait ends in time, with the reason and the pod."""
    text = Path(EXAMPLE).read_text()
    template = "podTemplate: {spec: {nodeSelector: {disk: glass}}}"
    impossible = text.replace("- engine: mocker", f"- engine: mocker\n      {template}")
    assert impossible != text
    done = terminal.run("apply", "-", "-n", namespace.name, "--wait", "--timeout", "15s", text=impossible)
    assert done.returncode == 1
    assert "isn't ready after 15 s: Unschedulable" in done.stderr
    assert "mocker-worker-" in done.stderr
    assert terminal.run("status", "mocker", "-n", namespace.name).returncode == 1


@pytest.mark.full
@pytest.mark.alone
def test_installing_again_is_an_upgrade(platform: Platform, terminal: Terminal) -> None:
    """The values of the first time are kept, and it ends when everything runs."""
    place = ("-n", platform.namespace, "--release", platform.release)
    done = terminal.run("install", *place, "--timeout", "120s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "upgrades release" in done.stdout
    assert re.search(r"operator: ready after [\d.]+ s: (\d) of \1 ready", done.stdout)
