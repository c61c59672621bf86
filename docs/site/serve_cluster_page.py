"""Serves the page of a cluster over made-up objects, for the check in Chromium: what a cluster says is e2e's to show.

It reads a line for each change: `lose` takes the first pipeline away, `fail` lets the cluster be out of reach.
"""

from __future__ import annotations

import secrets
import sys
import threading
from typing import Any, Final

import msgspec

from dynamo.cli.monitor.cluster_console.overview import ClusterObjects, overview
from dynamo.cli.monitor.cluster_console.server import LOOPBACK, ClusterConsole, listen, serve

HOSTILE: Final = "<img src=x onerror=hostile=1>"
SINCE: Final = "2026-01-02T03:04:05Z"


def pipeline(namespace: str, name: str, ready: str, reason: str, message: str, workers: tuple[int, int]) -> Any:
    """Return a pipeline as the API server has it."""
    facts = {"Ready": ready, "WorkersReady": ready, "FrontendReady": "True"}
    conditions = [
        {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": SINCE}
        for kind, status in facts.items()
    ]
    component = {"name": "worker", "revision": "r1", "replicas": workers[1], "updatedReplicas": workers[0]}
    component |= {"readyReplicas": workers[0], "availableReplicas": workers[0]}
    return {
        "metadata": {"namespace": namespace, "name": name, "generation": 1, "creationTimestamp": SINCE},
        "spec": {"components": [{"engine": "vllm"}]},
        "status": {
            "observedGeneration": 1, "conditions": conditions, "model": f"model of {name}",
            "url": f"http://{name}-frontend.{namespace}:8000/v1", "components": [component],
        },
    }  # fmt: skip


def event(namespace: str, kind: str, name: str, text: str) -> Any:
    """Return an event about an object."""
    about = {"namespace": namespace, "kind": kind, "name": name}
    return {
        "metadata": {},
        "type": "Normal",
        "reason": "Said",
        "lastTimestamp": SINCE,
        "message": text,
        "involvedObject": about,
    }


def scaler(namespace: str, name: str) -> Any:
    """Return an autoscaler that wants more workers."""
    target = {"apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "name": name}
    condition = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "reads queue"}
    return {
        "metadata": {"namespace": namespace, "name": "by-queue"},
        "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 6},
        "status": {"currentReplicas": 2, "desiredReplicas": 4, "lastScaleTime": SINCE, "conditions": [condition]},
    }


def pod(namespace: str, pipeline_name: str) -> Any:
    """Return a pod that asks for devices."""
    limits = {"nvidia.com/gpu": "4"}
    labels = {"dynamo.dev/pipeline": pipeline_name, "dynamo.dev/component": "worker"}
    return {
        "metadata": {"namespace": namespace, "name": f"{pipeline_name}-worker-r1-0", "labels": labels},
        "spec": {"containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


PIPELINES: Final = [
    pipeline("search", "llama", "True", "Serving", "all parts are ready and the endpoint serves requests", (2, 2)),
    pipeline("search", "qwen", "False", "Unschedulable", f"worker: 2 of 4 ready; {HOSTILE}", (2, 4)),
    pipeline("support", "phi", "True", "Serving", "all parts are ready and the endpoint serves requests", (1, 1)),
]
QUOTA: Final = {
    "metadata": {"namespace": "search"},
    "status": {"hard": {"requests.nvidia.com/gpu": "8"}, "used": {"requests.nvidia.com/gpu": "4"}},
}


class MadeUp:
    """A cluster that does as it is told."""

    def __init__(self) -> None:
        self.lost, self.error = 0, ""

    def sample(self) -> bytes:
        """Return what the page is sent."""
        objects = ClusterObjects(
            PIPELINES[self.lost :], [pod("search", "qwen")], [scaler("search", "qwen")],
            [event("search", "DynamoPipeline", "qwen", HOSTILE)], [QUOTA],
        )  # fmt: skip
        about: dict[str, Any] = {
            "cluster": "the cluster of context demo",
            "namespace": None,
            "error": self.error,
            "unseen": [],
        }
        return msgspec.json.encode(
            overview(objects) | about | {"more": False, "known": {"autoscalers": True, "events": True}}
        )

    def obey(self) -> None:
        """Do what standard input says."""
        for line in sys.stdin:
            if line.strip() == "lose":
                self.lost = 1
            elif line.strip() == "fail":
                self.error = "no answer from the cluster: connection refused"


def main() -> None:
    """Serve until a signal; the first line is the address."""
    cluster, key = MadeUp(), secrets.token_urlsafe(24)
    listener = listen(0)
    port = listener.getsockname()[1]
    print(f"http://{LOOPBACK}:{port}/#key={key}", flush=True)
    threading.Thread(target=cluster.obey, daemon=True).start()
    serve(ClusterConsole(cluster.sample, key, port), listener)


if __name__ == "__main__":
    main()
