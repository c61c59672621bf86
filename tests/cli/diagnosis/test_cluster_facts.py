"""What is collected of a cluster: answers of an API server, recorded, over a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from dynamo.cli.main import dynamo

_APPS = "/apis/apps/v1/deployments"
_PIPELINE = "/apis/dynamo.dev/v1alpha1/namespaces/serving/dynamopipelines/llama"
_POD = {
    "metadata": {"name": "llama-worker-1a2b3c-0", "labels": {}},
    "status": {"containerStatuses": [{"name": "worker", "state": {"waiting": {
        "reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/x:1"'}}}]},
}  # fmt: skip
_READY = {"conditions": [{"type": "Ready", "status": "True"}]}
HEALTHY: dict[str, Any] = {
    "/api/v1/nodes": {"items": [{"metadata": {"name": "node-0"}, "status": _READY}]},
    "/version": {"gitVersion": "v1.33.1"},
    "/api/v1/namespaces/serving": {"metadata": {"name": "serving"}},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dynamopipelines.dynamo.dev": {
        "spec": {"versions": [{"name": "v1alpha1", "served": True}]}
    },
    _APPS: {"items": [{
        "metadata": {"name": "dynamo-operator", "namespace": "dynamo"}, "spec": {"replicas": 1},
        "status": {"readyReplicas": 1},
    }]},
    "/apis/storage.k8s.io/v1/storageclasses": {"items": [
        {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    ]},
}  # fmt: skip


class _ApiServer(BaseHTTPRequestHandler):
    """An API server: objects by path, nothing elsewhere."""

    objects: ClassVar[dict[str, Any]] = {}
    rights: ClassVar[bool] = True
    skew: ClassVar[float] = 0.0

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        known = self.objects.get(path)
        if known is None and path.rsplit("/", 1)[-1].endswith("s"):
            known = {"items": []}
        self._answer(200 if known is not None else 404, known or {"message": "not found", "details": {"name": "x"}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(201, {"status": {"allowed": self.rights}})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.skew, usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _ApiServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    file = tmp_path_factory.mktemp("kube") / "config"
    file.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}],
    }))  # fmt: skip
    yield file
    server.shutdown()
    thread.join()
    server.server_close()


def _codes(
    kubeconfig: Path, *words: str, rights: bool = True, skew: float = 0.0, **objects: Any
) -> tuple[int, list[str]]:
    changed = {**HEALTHY, **objects}
    _ApiServer.objects = {path: value for path, value in changed.items() if value is not None}
    _ApiServer.rights, _ApiServer.skew = rights, skew
    done = CliRunner().invoke(dynamo, ["doctor", *words, "--kubeconfig", str(kubeconfig), "-o", "json"])
    return done.exit_code, [finding["code"] for finding in json.loads(done.output)["findings"]]


def test_healthy_cluster(kubeconfig: Path) -> None:
    """Nothing is wrong: exit code 0."""
    assert _codes(kubeconfig) == (0, [])


def _deployment(ready: int) -> dict[str, Any]:
    return {"items": [{**HEALTHY[_APPS]["items"][0], "status": {"readyReplicas": ready}}]}


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
        (_APPS, _deployment(0), "operator-down"),
        ("/apis/coordination.k8s.io/v1/namespaces/dynamo/leases", _LEASE, "no-leader"),
        ("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", _HOOK, "webhook-down"),
        ("/api/v1/namespaces/serving/resourcequotas", _QUOTA, "quota"),
        ("/api/v1/namespaces/serving/pods", {"items": [_POD]}, "image-pull"),
        ("/apis/storage.k8s.io/v1/storageclasses", {"items": []}, "no-storage-class"),
        (
            "/api/v1/nodes",
            {"items": [{"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}, "status": _READY}]},
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
    pods = {"items": [_POD]}
    objects: dict[str, Any] = {_PIPELINE: live, "/api/v1/namespaces/serving/pods": pods}
    assert _codes(kubeconfig, "llama", **objects) == (1, ["image-pull"])
