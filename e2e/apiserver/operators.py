"""The operator's process as the chart starts it, with the chart's rights: `Operators`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml
from e2e.apiserver.client import Object, until
from e2e.apiserver.plane import Plane, free_ports

from dynamo.operator.kube.resources import LEASES, Resource

HOME = "dynamo"
ACCOUNT = "dynamo-operator"
USER = f"system:serviceaccount:{HOME}:{ACCOUNT}"
NAMESPACES = Resource("v1", "Namespace", "namespaces")
ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")
SECRETS = Resource("v1", "Secret", "secrets")
ROLES = Resource("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles")
BINDINGS = Resource("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings")
REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG: Object = {
    "images": {"frontend": "dynamo/frontend:1", "workers": {"default": "dynamo/worker:1"}},
    # Lanes in two namespaces are compared, so they are to be alike in what they make.
    "shareDynamoNamespaces": True,
    "etcd": {"endpoints": ["http://etcd:2379"]},
    "nats": {"url": "nats://nats:4222"},
}


def rules() -> list[Object]:
    """The chart's, and the lease's; the template's own lines are left out."""
    text = (REPOSITORY / "charts/dynamo-platform/templates/_rules.tpl").read_text()
    found: list[Object] = yaml.safe_load("\n".join(line for line in text.splitlines() if not line.startswith("{{")))
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    return [*found, lease]


def role(given: list[Object]) -> Object:
    """What the operator may do."""
    return {
        "apiVersion": ROLES.api_version, "kind": ROLES.kind, "metadata": {"name": ACCOUNT}, "rules": given,
    }  # fmt: skip


class Operator:
    """One running process."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name, self.process, self.port, self.log = name, process, port, log

    def probe(self, path: str = "/healthz") -> tuple[int, str]:
        """Code and text; 0 where nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.probe("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def reconciles(self) -> float:
        """How often it has looked at a pipeline."""
        return self.metric("controller_runtime_reconcile_total")

    def said(self) -> str:
        """Its log."""
        return self.log.read_text()

    def defects(self) -> list[str]:
        """What its log says of errors that nobody expected; kopf writes tracebacks of others, too."""
        return [line for line in self.said().splitlines() if re.search("reconcile failed|watching .* failed", line)]

    def end(self, seconds: float = 20.0) -> int:
        """SIGTERM; its exit status."""
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(10)


class Operators:
    """Starts operators, and ends those that are left."""

    def __init__(self, plane: Plane, test: str) -> None:
        self._plane, self._test = plane, test
        self._all: list[Operator] = []
        (plane.folder / "config.yaml").write_text(json.dumps(CONFIG))

    def allow(self) -> None:
        """Namespace, account and rights."""
        admin = self._plane.admin
        admin.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        metadata = {"name": ACCOUNT, "namespace": HOME}
        admin.apply(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        admin.apply(ROLES, role(rules()))
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        admin.apply(BINDINGS, {
            "apiVersion": BINDINGS.api_version, "kind": BINDINGS.kind, "metadata": {"name": ACCOUNT},
            "subjects": [subject], "roleRef": reference,
        })  # fmt: skip
        self.log_in("first")

    def log_in(self, secret: str) -> None:
        """A token that is valid while this Secret exists, in the file that the operators read."""
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": HOME}}
        self._plane.admin.apply(SECRETS, body)
        bound = {"apiVersion": "v1", "kind": "Secret", "name": secret}
        wanted = {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound, "expirationSeconds": 3600, "audiences": []},
        }  # fmt: skip
        found = self._plane.admin.ask("POST", ACCOUNTS.path(HOME, ACCOUNT, "token"), wanted)
        self.token: str = found["status"]["token"]
        self._plane.kubeconfig("operator", self.token)

    def start(self, name: str = "one", *, leads: bool = True) -> Operator:
        """A replica; by default until it leads."""
        found = self._run(name, self._plane.folder / "operator.kubeconfig", self._plane.folder / "config.yaml")
        if leads:
            until(f"{name} leads", lambda: self.holder() == name)
        return found

    def through(self, server: str, name: str, config: Object) -> Operator:
        """The only replica, which reaches the API server at this URL; with settings of its own beside the usual."""
        file = self._plane.folder / f"{self._test}-{name}.yaml"
        file.write_text(json.dumps(CONFIG | {"leaderElection": {"enabled": False}} | config))
        return self._run(name, self._plane.kubeconfig(f"{self._test}-{name}", self.token, server), file)

    def _run(self, name: str, kubeconfig: Path, config: Path) -> Operator:
        port = free_ports(1)[0]
        log = self._plane.folder / f"{self._test}-{len(self._all)}-{name}.log"
        environment = os.environ | {"KUBECONFIG": str(kubeconfig), "POD_NAME": name, "POD_NAMESPACE": HOME}
        command = [sys.executable, "-m", "dynamo.operator", f"--config={config}"]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*command, "--host=127.0.0.1", f"--port={port}"], env=environment, stdout=stream, stderr=stream
            )
        found = Operator(name, process, port, log)
        self._all.append(found)
        return found

    def holder(self) -> str:
        """Who leads."""
        found = self._plane.admin.get(LEASES, HOME, ACCOUNT)
        return str((found or {}).get("spec", {}).get("holderIdentity") or "")

    def end(self) -> None:
        """All that still run; one that doesn't end by itself is a failure."""
        left = [one for one in self._all if one.process.poll() is None]
        self._all.clear()
        for one in left:
            one.process.terminate()
        for one in left:
            assert one.process.wait(30) == 0, one.said()
