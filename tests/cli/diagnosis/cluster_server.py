"""An API server that answers with objects by their paths, over a real socket, and a kubeconfig that leads there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

DEPLOYMENTS = "/apis/apps/v1/deployments"
PIPELINE = "/apis/dynamo.dev/v1alpha1/namespaces/serving/dynamopipelines/llama"
POD = {
    "metadata": {"name": "llama-worker-1a2b3c-0", "labels": {}},
    "status": {"containerStatuses": [{"name": "worker", "state": {"waiting": {
        "reason": "ImagePullBackOff", "message": 'Back-off pulling image "nowhere/x:1"'}}}]},
}  # fmt: skip
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
HEALTHY: dict[str, Any] = {
    "/api/v1/nodes": {"items": [{"metadata": {"name": "node-0"}, "status": READY}]},
    "/version": {"gitVersion": "v1.33.1"},
    "/api/v1/namespaces/serving": {"metadata": {"name": "serving"}},
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dynamopipelines.dynamo.dev": {
        "spec": {"versions": [{"name": "v1alpha1", "served": True}]}
    },
    DEPLOYMENTS: {"items": [{
        "metadata": {"name": "dynamo-operator", "namespace": "dynamo"}, "spec": {"replicas": 1},
        "status": {"readyReplicas": 1},
    }]},
    "/apis/storage.k8s.io/v1/storageclasses": {"items": [
        {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
    ]},
}  # fmt: skip


class ApiServer(BaseHTTPRequestHandler):
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


@contextmanager
def served(folder: Path) -> Iterator[Path]:
    """Serve `ApiServer`; the kubeconfig's path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    file = folder / "config"
    file.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}],
    }))  # fmt: skip
    try:
        yield file
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
