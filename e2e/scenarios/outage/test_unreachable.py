"""A worker that stops answering without a word: its pod is ready all the while, and the status isn't deceived."""

from __future__ import annotations

import time

import pytest
from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import is_ready, workers
from e2e.traffic.busy import NAME, Note, load, mocker, serve

NOTICED_SECONDS = 60
SIGNAL = """
import os, signal
from pathlib import Path
others = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal() and int(one.name) != os.getpid()]
for pid in others:
    if b"dynamo.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
        os.kill(pid, signal.%s)
"""


@pytest.mark.alone
def test_a_worker_that_freezes_is_named(namespace: Namespace, record_property: Note) -> None:
    """Frontends leave it within seconds, and the status follows them; what it was asked goes on elsewhere."""
    serve(namespace, mocker(replicas=2), frontend={"replicas": 2, "migrationLimit": 3})
    frozen = workers(namespace, NAME)[0]["metadata"]["name"]
    with load(namespace) as both:
        tell(namespace, frozen, "SIGSTOP")
        began = time.monotonic()
        try:
            said = wait_for("the status names it", lambda: _names(namespace, frozen), NOTICED_SECONDS)
            record_property("seconds until the status names a frozen worker", round(time.monotonic() - began, 1))
            assert said["reason"] == "Unreachable"
            assert any(map(is_ready, (p for p in workers(namespace, NAME) if p["metadata"]["name"] == frozen)))
        finally:
            tell(namespace, frozen, "SIGCONT")
        namespace.wait_ready(NAME, NOTICED_SECONDS)
    both.judge(record_property)


def tell(namespace: Namespace, pod: str, signal: str) -> None:
    """A signal to the worker's process, from another one of its container."""
    namespace.kubectl("exec", pod, "--", "python", "-c", SIGNAL % signal)


def _names(namespace: Namespace, pod: str) -> dict[str, str] | None:
    condition = namespace.condition(NAME)
    return condition if condition.get("status") == "False" and pod in condition["message"] else None
