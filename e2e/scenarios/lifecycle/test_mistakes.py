"""What users forget, and what they change outside the pipeline, with real kubelets: told in their words, and mended."""

from __future__ import annotations

import re

from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, pipeline, workers

NAME = "mended"
SAY_SECONDS = 120
SECRET = "later"
WITH_SECRET: Object = {"engine": "mocker", "envFrom": [{"secretRef": {"name": SECRET}}]}


def test_a_missing_secret(namespace: Namespace) -> None:
    """The kubelet's sentence names it; once it is there, the same pod starts, without an edit of the pipeline."""
    namespace.apply(pipeline(NAME, WITH_SECRET))
    condition = wait_for("it says why", lambda: _with(namespace, "CreateContainerConfigError"), SAY_SECONDS)
    assert re.search(rf'secrets? "{SECRET}" not found', condition["message"])  # plural where kubelets don't watch them
    (pod,) = [worker["metadata"] for worker in workers(namespace, NAME)]
    assert f"pod {pod['name']} " in condition["message"]
    namespace.apply(_secret("first"))
    namespace.wait_ready(NAME)
    assert [worker["metadata"]["uid"] for worker in workers(namespace, NAME)] == [pod["uid"]]


def test_a_rotated_secret(namespace: Namespace) -> None:
    """What runs keeps the old value, and nothing rolls by itself; `spec.restart` brings the new one."""
    namespace.apply(_secret("first"))
    namespace.apply(pipeline(NAME, WITH_SECRET))
    namespace.wait_ready(NAME)
    assert _value(namespace) == "first"
    namespace.apply(_secret("second"))
    assert _value(namespace) == "first"
    namespace.apply(pipeline(NAME, WITH_SECRET, restart="second"))
    namespace.wait_ready(NAME)
    assert _value(namespace) == "second"


def test_a_claim_that_is_never_bound(namespace: Namespace) -> None:
    """A class that isn't there: the pod that waits is named, with the scheduler's words; without it all is well."""
    cache = {"size": "1Gi", "storageClassName": "no-such-class"}
    namespace.apply(pipeline(NAME, model={"cache": cache}))
    condition = wait_for("it says why", lambda: _with(namespace, "Unschedulable"), SAY_SECONDS)
    assert f"pod {NAME}-worker-" in condition["message"]
    namespace.apply(pipeline(NAME))
    namespace.wait_ready(NAME)


def _with(namespace: Namespace, reason: str) -> Object | None:
    found = namespace.condition(NAME)
    return found if found.get("reason") == reason else None


def _secret(value: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": {"ROTATED": value}}


def _value(namespace: Namespace) -> str:
    """What the worker's container has been started with."""
    (pod,) = workers(namespace, NAME)
    program = "import os; print(os.environ['ROTATED'])"
    return namespace.kubectl("exec", pod["metadata"]["name"], "-c", "worker", "--", "python", "-c", program).strip()
