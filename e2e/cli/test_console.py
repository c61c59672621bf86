"""`dynamo console --cluster` against a real API server: what it shows, to whom, and what it never does."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.apiserver.client import until as poll
from e2e.apiserver.plane import Plane
from e2e.cli.cluster_page import page, snapshots
from e2e.cli.shell import Shell, component_status, install_crd

from dynamo.operator.kube.resources import PIPELINES

PIPELINE: dict[str, Any] = {
    "apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "metadata": {"name": "llama"},
    "spec": {"components": [{"engine": "mocker"}]},
}  # fmt: skip
CPU = {"type": "Utilization", "averageUtilization": 50}
SCALER: dict[str, Any] = {
    "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "by-queue"},
    "spec": {
        "scaleTargetRef": {"apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "name": "llama"},
        "minReplicas": 1, "maxReplicas": 6,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": CPU}}],
    },
}  # fmt: skip
SCALED: dict[str, Any] = {
    "currentReplicas": 2, "desiredReplicas": 4, "currentMetrics": None,
    "conditions": [
        {"type": "ScalingLimited", "status": "False", "reason": "DesiredWithinRange", "message": "within its bounds"}
    ],
}  # fmt: skip
LABELS = {"dynamo.dev/pipeline": "llama", "dynamo.dev/component": "worker"}
POD: dict[str, Any] = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": "llama-worker-r1-0", "labels": LABELS},
    "spec": {"containers": [{"name": "worker", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 2}}}]},
}  # fmt: skip
QUOTA: dict[str, Any] = {
    "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
}  # fmt: skip


def until(address: str, key: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first snapshot of which something holds, within half a minute."""
    end, last = time.monotonic() + 30, {}
    for last in snapshots(address, key):
        if holds(last):
            return last
        if time.monotonic() > end:
            break
    pytest.fail(f"the page never showed it: {last}")


def llama(snapshot: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The pipeline of a test; empty where it isn't listed."""
    own = (p for p in snapshot["pipelines"] if (p["namespace"], p["name"]) == (namespace, "llama"))
    return next(own, {})


def made(shell: Shell) -> None:
    for body in (PIPELINE, SCALER, QUOTA, POD):
        shell.kubectl("create", "-f", "-", text=json.dumps(body))
    shell.kubectl(
        "patch", "hpa", "by-queue", "--subresource=status", "--type=merge", "-p", json.dumps({"status": SCALED})
    )


def test_pipelines_scaling_and_namespaces_are_shown_and_follow(shell: Shell) -> None:
    """Conditions, the autoscaler's wish and why, devices and quotas; a change comes to the open page."""
    made(shell)
    parts = [component_status(replicas=4, updated=1, ready=2)]
    shell.write_status("llama", "False", "Starting", "worker: 2 of 4 ready", components=parts, model="m")
    with page(shell) as (address, key):
        watched = snapshots(address, key)
        one = llama(next(watched), shell.namespace)
        assert (one["state"], one["reason"], one["message"]) == ("waiting", "Starting", "worker: 2 of 4 ready")
        assert (one["available"], one["wanted"], one["model"], one["engines"]) == (2, 4, "m", "mocker")
        assert [part["name"] for part in one["parts"]] == ["worker"]
        assert "pod llama-worker-r1-0" in one["parts"][0]["text"]
        assert one["scaling"]["conditions"][0]["message"] == "within its bounds"
        assert {name: one["scaling"][name] for name in ("by", "min", "max", "current", "desired")} == {
            "by": "by-queue", "min": 1, "max": 6, "current": 2, "desired": 4,
        }  # fmt: skip
        shell.write_status("llama", "True", "Serving", "serves", components=parts, model="m")
        later = until(address, key, lambda s: llama(s, shell.namespace)["state"] == "ready")
        (namespace,) = (n for n in later["namespaces"] if n["name"] == shell.namespace)
        assert (namespace["pipelines"], namespace["ready"], namespace["pods"]) == (1, 1, 1)
        assert namespace["devices"] == {"nvidia.com/gpu": 2}
        assert namespace["quotas"] == [{"resource": "requests.nvidia.com/gpu", "used": "2", "hard": "8"}]
        shell.kubectl("delete", "dp", "llama")
        until(address, key, lambda s: not llama(s, shell.namespace))


def test_only_who_has_the_key_reads_anything(shell: Shell) -> None:
    """No key, a wrong one, another host's name, another method: each a refusal, none with data. The page has none."""
    made(shell)
    with page(shell) as (address, key):
        events = f"{address}console/events"
        assert httpx.get(events).status_code == 401
        assert httpx.get(events, headers={"authorization": f"Bearer {key}x"}).status_code == 401
        right = {"authorization": f"Bearer {key}"}
        assert httpx.get(events, headers=right | {"host": "evil.example"}).status_code == 421
        assert httpx.post(events, headers=right).status_code == 405
        whole = httpx.get(address)
        assert whole.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert shell.namespace not in whole.text
        for name in ("cluster.js", "console.css", "page.js", "stream.js"):
            assert httpx.get(f"{address}console/{name}").status_code == 200


def test_it_shows_what_the_user_may_read(shell: Shell) -> None:
    """Nothing of other namespaces to a user of one; what can't be seen is said; and so is that nothing may be."""
    made(shell)
    nobody = shell.as_nobody()
    with page(nobody) as (address, key):
        assert "name one with -n" in next(snapshots(address, key))["error"]
    rules = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
        "rules": [{"apiGroups": ["dynamo.dev"], "resources": ["dynamopipelines"], "verbs": ["list"]}],
    }  # fmt: skip
    shell.kubectl("create", "-f", "-", text=json.dumps(rules))
    shell.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={shell.namespace}:nobody")
    with page(nobody, "-n", shell.namespace) as (address, key):
        seen = until(address, key, lambda s: bool(s["pipelines"]))
        assert [p["name"] for p in seen["pipelines"]] == ["llama"]
        assert llama(seen, shell.namespace)["scaling"] is None
        assert any(text.startswith("pods: you may not") for text in seen["unseen"])


def test_what_nobody_can_read_hides_its_own_namespace_only(bare: Plane) -> None:
    """A pipeline that is nested 9,900 times, of a tenant: the page and `dynamo status -A` show those of the others."""
    install_crd(bare)
    shell, hostile = Shell.fresh(bare), Shell.fresh(bare)
    made(shell)
    body = json.dumps({**PIPELINE, "spec": {"components": [{"engine": "mocker", "podTemplate": {"spec": "DEEP"}}]}})
    text = body.replace('"DEEP"', '{"a":' * 9900 + "1" + "}" * 9900)
    url = f"{bare.server}{PIPELINES.path(hostile.namespace)}"
    headers = {"authorization": f"Bearer {bare.admin_token}", "content-type": "application/json"}
    assert httpx.post(url, content=text, headers=headers, verify=False, timeout=60).status_code == 201
    with page(shell) as (address, key):
        seen = next(snapshots(address, key))
        assert seen["error"] == ""
        assert llama(seen, shell.namespace)
        assert any(hostile.namespace in line and "nested too deep" in line for line in seen["unseen"])
    listed = shell.run("status", "-A")
    assert (listed.returncode, shell.namespace in listed.stdout) == (0, True)
    assert f"namespace {hostile.namespace}" in listed.stderr


def test_a_server_that_goes_away_is_told_of_and_comes_back(bare: Plane) -> None:
    """The page keeps what it had, says why nothing is new, and goes on by itself."""
    install_crd(bare)
    shell = Shell.fresh(bare)
    made(shell)
    with page(shell) as (address, key):
        assert llama(next(snapshots(address, key)), shell.namespace)
        bare.kill_apiserver()
        gone = until(address, key, lambda s: bool(s["error"]))
        assert llama(gone, shell.namespace)
        bare.start_apiserver()
        until(address, key, lambda s: not s["error"])


def test_mistakes_are_sentences(shell: Shell) -> None:
    """Words that don't go together, and a port that is taken."""
    both = shell.run("console", "--cluster", "http://127.0.0.1:1")
    assert (both.returncode, both.stderr.splitlines()[-1]) == (2, "Error: either a URL or --cluster")
    alone = shell.run("console", "-n", "default")
    assert alone.returncode == 2
    assert "go with --cluster" in alone.stderr
    with page(shell) as (address, _):
        taken = shell.run("console", "--cluster", "--port", address.rstrip("/").rpartition(":")[2])
        assert taken.returncode == 1
        assert "choose another with --port" in taken.stderr


def test_a_browser_gets_the_key_by_a_private_file(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command line, which all users see, has none; the file goes once the page is open, or at Ctrl-C."""
    words = tmp_path / "words.txt"
    browser = tmp_path / "xdg-open"
    browser.write_text(f'#!/bin/sh\necho "$@" > {words}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with page(shell, "--open") as (address, key):
        poll("a browser is started", lambda: words.exists() and words.read_text().strip(), 20)
        opened = Path(words.read_text().strip().removeprefix("file://"))
        assert key not in str(opened)
        assert f"{address}#key={key}" in opened.read_text()
        assert stat.S_IMODE(opened.parent.stat().st_mode) == 0o700
        next(snapshots(address, key))
        assert not opened.parent.exists()
    words.unlink()
    with page(shell, "--open"):
        poll("a browser is started again", lambda: words.exists() and words.read_text().strip(), 20)
        unread = Path(words.read_text().strip().removeprefix("file://"))
        assert unread.exists()
    assert not unread.parent.exists()
