"""Charts as somebody with rights in namespaces only runs them: no CRD, no ClusterRole, one namespace to look after."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from e2e.cluster.cluster import RefusedError, program
from e2e.cluster.installation import CHART, values_of_run
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object

RELEASE = "own"
HELM_SECONDS = 300
OWN: Object = {
    "crds": {"install": False},
    "operator": {"rbac": {"scope": "namespace", "aggregate": False}},
    "etcd": {"persistence": {"size": "1Gi"}},
}


def helm(namespace: Namespace, *words: str, values: Object | None = None) -> str:
    """What helm prints; RefusedError with what it says."""
    command = [program("helm"), "--kubeconfig", str(namespace.cluster.kubeconfig), "-n", namespace.name, *words]
    given = ["--values", "-"] if values is not None else []
    text = json.dumps(values) if values is not None else ""
    done = subprocess.run(
        [*command, *given], input=text, capture_output=True, text=True, timeout=HELM_SECONDS, check=False
    )
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def merged(one: Object, other: Object) -> Object:
    """As Helm merges values."""
    both = {
        k: merged(one[k], v) if isinstance(v, dict) and isinstance(one.get(k), dict) else v for k, v in other.items()
    }
    return {**one, **both}


def install(namespace: Namespace, *words: str, chart: Path = CHART) -> str:
    """Install or upgrade the platform in this namespace, for it alone, and wait until it is ready."""
    values = merged(values_of_run(), OWN)
    return helm(
        namespace, "upgrade", "--install", RELEASE, str(chart), "--wait", "--timeout=240s", *words, values=values
    )
