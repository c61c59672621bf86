"""One user's shell: a kubeconfig, a namespace, and `dynamo` with them.

What an operator would write, the tests write themselves: they are about what a user sees of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from e2e.apiserver.client import until
from e2e.apiserver.plane import Plane
from e2e.kind.places import REPOSITORY, Places

from dynamo.operator.kube.resources import PIPELINES

CRD = REPOSITORY / "crds" / "dynamo.dev_dynamopipelines.yaml"
PORTIONS = ("sdk", "operator", "frontend", "worker", "cli")
SECONDS = 180


def kubeconfig(plane: Plane, token: str, namespace: str) -> Path:
    """A file for one user, who checks the server's certificate; its context is called `test`."""
    cluster = {"server": plane.server, "certificate-authority": str(plane.folder / "certs" / "apiserver.crt")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
    }
    path = plane.folder / f"{namespace}-{uuid.uuid4().hex[:8]}.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return path


def install_crd(plane: Plane) -> None:
    """By plain apply, until pipelines can be asked for."""
    plane.kubectl("apply", "-f", str(CRD))
    until("pipelines are served", lambda: plane.admin.code("GET", PIPELINES.path()) == 200)


def component_status(replicas: int, updated: int = 0, ready: int = 0) -> dict[str, Any]:
    """A component's counts in a status; the ready ones can be routed to."""
    counts = {"replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": ready}
    return {"name": "worker", "revision": "r1", **counts}


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """`dynamo` with a kubeconfig; `code` is where its packages lie."""

    config: Path
    home: Path
    code: tuple[Path, ...] = tuple(REPOSITORY / portion for portion in PORTIONS)

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Nothing of whoever runs the tests but the interpreter's needs."""
        programs = [str(Places.of(os.environ).bin), *os.environ["PATH"].split(os.pathsep)]
        return {
            "PATH": os.pathsep.join(programs), "HOME": str(self.home), "PYTHONSAFEPATH": "1",
            "PYTHONPATH": os.pathsep.join(map(str, self.code)), "KUBECONFIG": str(self.config), "NO_PROXY": "*",
            "COLUMNS": "200", **(more or {}),
        }  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """One that goes on."""
        return subprocess.Popen(
            self._command(words), env=self.environment(), text=True, cwd=self.home,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(
        self, *words: str, text: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One that ends."""
        return subprocess.run(
            self._command(words), env=self.environment(environment), text=True, input=text, cwd=self.home,
            capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "dynamo.cli", *words]


@dataclass(frozen=True, kw_only=True)
class Shell(Terminal):
    """The same for a user of one namespace of a control plane."""

    plane: Plane
    namespace: str

    @classmethod
    def fresh(cls, plane: Plane) -> Shell:
        """An administrator in a new namespace."""
        namespace = f"t-{uuid.uuid4().hex[:8]}"
        plane.kubectl("create", "namespace", namespace)
        plane.kubectl("-n", namespace, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
        config = kubeconfig(plane, plane.admin_token, namespace)
        return cls(plane=plane, namespace=namespace, config=config, home=plane.folder)

    def with_token(self, token: str) -> Shell:
        """The same place with other credentials."""
        return replace(self, config=kubeconfig(self.plane, token, self.namespace))

    def as_nobody(self) -> Shell:
        """A user who is known and may do nothing."""
        self.kubectl("create", "serviceaccount", "nobody")
        return self.with_token(self.kubectl("create", "token", "nobody").strip())

    def kubectl(self, *words: str, text: str = "") -> str:
        """As an administrator, in this namespace."""
        return self.plane.kubectl("-n", self.namespace, *words, stdin=text)

    def live(self, name: str) -> dict[str, Any]:
        """A pipeline."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "dp", name, "-o", "json"))
        return found

    def write_status(self, name: str, ready: str, reason: str, message: str, **more: Any) -> None:
        """What an operator would say of the current generation."""
        generation, stalled = self.live(name)["metadata"]["generation"], more.pop("stalled", False)
        kinds = {"Ready": ready} | ({"Stalled": "True"} if stalled else {}) | more.pop("conditions", {})
        conditions = [
            {
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation,
            }
            for kind, status in kinds.items()
        ]  # fmt: skip
        status = {"observedGeneration": generation, "conditions": conditions, **more}
        self.kubectl("patch", "dp", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
