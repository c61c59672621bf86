"""Two tenants of one platform: what the hostile one is allowed in Kubernetes, and what its pods try."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from e2e.cluster.cluster import RefusedError, wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home
from e2e.namespace import namespace_nats
from e2e.namespace.intruder import UNDER_WAY
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, pipeline
from e2e.traffic.busy import mocker, serve
from tests.operator.credentials.attacks import Stage

ACCOUNT = "hostile"
INTRUDER = Path(__file__).with_name("intruder.py")
POD_SECONDS = 180
SAFE: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
LABELS: Object = {"app.kubernetes.io/part-of": "dynamo", "app.kubernetes.io/managed-by": "dynamo-operator"}
"""What the NetworkPolicies ask for; anybody may set it."""
LIMITS: Object = {"cpu": "300m", "memory": "512Mi"}
"""As an administrator's LimitRange gives them: what a pod computes on a shared node is Kubernetes' to bound."""


@dataclass(frozen=True)
class Tenant:
    """One who may do everything in its own namespace, and nothing elsewhere."""

    namespace: Namespace
    platform: Platform
    nats: str = ""
    """Where its pods find NATS; empty: that of its own namespace."""

    @property
    def user(self) -> str:
        """As Kubernetes calls it."""
        return f"system:serviceaccount:{self.namespace.name}:{ACCOUNT}"

    def enable(self) -> None:
        """The cluster's own role `admin`, which the chart has added pipelines to."""
        self.namespace.kubectl("create", "serviceaccount", ACCOUNT)
        account = f"--serviceaccount={self.namespace.name}:{ACCOUNT}"
        self.namespace.kubectl("create", "rolebinding", ACCOUNT, "--clusterrole=admin", account)

    def kubectl(self, *words: str, text: str = "") -> str:
        """As this tenant."""
        return self.namespace.cluster.kubectl(f"--as={self.user}", *words, text=text)

    def may(self, *words: str, text: str = "") -> bool:
        """Whether Kubernetes lets it."""
        try:
            self.kubectl(*words, text=text)
        except RefusedError as error:
            if "forbidden" in str(error).lower():
                return False
            raise
        return True

    def apply(self, manifest: Object) -> str:
        """Into its own namespace."""
        return self.kubectl("-n", self.namespace.name, "apply", "-f", "-", text=json.dumps(manifest))

    def run(self, name: str, own: str, victim: str, *words: str) -> None:
        """A pod of its own with the credentials of its own pipeline, and the intruder's program."""
        program = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}}
        self.apply({**program, "data": {INTRUDER.name: INTRUDER.read_text()}})
        space = self.namespace.pipeline(own)["status"]["namespace"]
        env = {"NATS": self.nats or namespace_nats.url(self.namespace), "ETCD": self._etcd()}
        env |= {"OWN": space, "VICTIM": victim, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
        container = {
            "name": "intruder",
            "image": self._image(own),
            "command": ["python", f"/program/{INTRUDER.name}", *words],
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "resources": {"requests": LIMITS, "limits": LIMITS},
            "securityContext": SAFE,
            "volumeMounts": [
                {"name": "program", "mountPath": "/program"},
                {"name": "credentials", "mountPath": "/credentials"},
            ],
        }
        volumes = [
            {"name": "program", "configMap": {"name": name}},
            {"name": "credentials", "secret": {"secretName": f"{own}-credentials"}},
        ]
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
        metadata = {"name": name, "labels": {**LABELS, "dynamo.dev/pipeline": "busy"}}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def result(self, name: str, seconds: float = POD_SECONDS) -> Any:
        """What its pod printed, once it has ended."""

        def phase() -> str | None:
            found = (self.namespace.get("v1/Pod", name) or {}).get("status", {}).get("phase")
            return found if found in ("Succeeded", "Failed") else None

        ended = wait_for(f"pod {name} ends", phase, seconds)
        said = self.kubectl("-n", self.namespace.name, "logs", name)
        assert ended == "Succeeded", said
        return json.loads(said.splitlines()[-1])

    def runs(self, name: str) -> bool:
        """Whether its pod is at it."""
        found: Object = self.namespace.get("v1/Pod", name) or {}
        return bool(found.get("status", {}).get("phase") == "Running")

    def floods(self, name: str) -> bool:
        """Whether its flood is under way, as it says itself."""
        return self.runs(name) and UNDER_WAY in self.kubectl("-n", self.namespace.name, "logs", name)

    def _image(self, own: str) -> str:
        """The worker's, which is on every node."""
        pods = self.namespace.list("v1/Pod", f"dynamo.dev/pipeline={own},dynamo.dev/component=worker")
        return str(pods[0]["spec"]["containers"][0]["image"])

    def _etcd(self) -> str:
        selector = f"app.kubernetes.io/instance={self.platform.release},app.kubernetes.io/component=etcd"
        (service,) = home(self.platform).list("v1/Service", selector)
        return f"http://{service['metadata']['name']}.{self.platform.namespace}.svc:2379"


def pair(new_namespace: Callable[[], Namespace], platform: Platform, own: str) -> tuple[Namespace, Tenant]:
    """A victim that serves, and a hostile tenant with a pipeline `own`, and so with credentials."""
    victim, tenant = new_namespace(), Tenant(new_namespace(), platform)
    tenant.enable()
    tenant.apply(pipeline(own))
    serve(victim, mocker(replicas=2), frontend={"replicas": 2})
    tenant.namespace.wait_ready(own)
    return victim, tenant


@contextmanager
def on_stage(platform: Platform, victim: Namespace, tenant: Namespace, served: str, own: str) -> Iterator[Stage]:
    """The installed etcd, with what both tenants find in the Secrets of their pipelines."""
    here = home(platform)
    selector = f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component=etcd"
    (pod,) = here.list("v1/Pod", selector)
    with here.reach(f"pod/{pod['metadata']['name']}", 2379) as url, httpx.Client(timeout=20) as client:
        spaces = (victim.pipeline(served)["status"]["namespace"], tenant.pipeline(own)["status"]["namespace"])
        stage = Stage(url, client, *spaces)
        for who, namespace, name in (("victim", victim, served), ("tenant", tenant, own)):
            secret = namespace.get("v1/Secret", f"{name}-credentials")
            assert secret is not None
            data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
            stage.sign_in(who, data["etcd.username"], data["etcd.password"])
        stage.register()
        yield stage
