"""What is collected of a cluster: answers of an API server, recorded, over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.diagnosis.cluster_server import DEPLOYMENTS, HEALTHY, PIPELINE, POD, READY, ApiServer, served

from dynamo.cli.main import dynamo


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("kube")) as file:
        yield file


def _codes(
    kubeconfig: Path, *words: str, rights: bool = True, skew: float = 0.0, **objects: Any
) -> tuple[int, list[str]]:
    changed = {**HEALTHY, **objects}
    ApiServer.objects = {path: value for path, value in changed.items() if value is not None}
    ApiServer.rights, ApiServer.skew = rights, skew
    done = CliRunner().invoke(dynamo, ["doctor", *words, "--kubeconfig", str(kubeconfig), "-o", "json"])
    return done.exit_code, [finding["code"] for finding in json.loads(done.output)["findings"]]


def test_healthy_cluster(kubeconfig: Path) -> None:
    """Nothing is wrong: exit code 0."""
    assert _codes(kubeconfig) == (0, [])


def _deployment(ready: int) -> dict[str, Any]:
    return {"items": [{**HEALTHY[DEPLOYMENTS]["items"][0], "status": {"readyReplicas": ready}}]}


_HOOK = {"items": [{"webhooks": [{"name": "p.example.com", "failurePolicy": "Fail", "clientConfig": {
    "service": {"namespace": "policy", "name": "hook"}}}]}]}  # fmt: skip
_QUOTA = {"items": [{"metadata": {"name": "team"}, "status": {
    "hard": {"requests.cpu": "2"}, "used": {"requests.cpu": "2000m"}}}]}  # fmt: skip
_LEASE = {"items": [{"metadata": {"name": "dynamo-operator"}, "spec": {
    "holderIdentity": "op-0", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "live", "code"),
    [
        ("/api/v1/namespaces/serving", None, "no-namespace"),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dynamopipelines.dynamo.dev", None, "no-crd"),
        (DEPLOYMENTS, _deployment(0), "operator-down"),
        ("/apis/coordination.k8s.io/v1/namespaces/dynamo/leases", _LEASE, "no-leader"),
        ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", _HOOK, "webhook-down"),
        ("/api/v1/namespaces/serving/resourcequotas", _QUOTA, "quota"),
        ("/api/v1/namespaces/serving/pods", {"items": [POD]}, "image-pull"),
        ("/apis/storage.k8s.io/v1/storageclasses", {"items": []}, "no-storage-class"),
        (
            "/api/v1/nodes",
            {"items": [{"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}, "status": READY}]},
            "no-device-plugin",
        ),
    ],
)
def test_broken_cluster(path: str, live: Any, code: str, kubeconfig: Path) -> None:
    """The first finding is the fault: exit code 1."""
    exit_code, codes = _codes(kubeconfig, **{path: live})
    assert (exit_code, codes[0]) == (1, code)


def test_rights_and_clocks(kubeconfig: Path) -> None:
    """The server is asked about rights by name, and its Date header compared."""
    assert _codes(kubeconfig, rights=False) == (1, ["no-rights"])
    assert _codes(kubeconfig, skew=600.0) == (1, ["clock-skew"])


def test_pipeline_of_a_cluster(kubeconfig: Path) -> None:
    """Its pods say more than its condition."""
    live = {
        "metadata": {"name": "llama", "namespace": "serving", "generation": 1},
        "status": {"observedGeneration": 1, "conditions": [
            {"type": "Ready", "status": "False", "reason": "WorkersNotReady", "message": "0 of 1"}]},
    }  # fmt: skip
    pods = {"items": [POD]}
    objects: dict[str, Any] = {PIPELINE: live, "/api/v1/namespaces/serving/pods": pods}
    assert _codes(kubeconfig, "llama", **objects) == (1, ["image-pull"])
