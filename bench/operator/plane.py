"""A Kubernetes control plane on loopback with fake nodes: `with Plane(folder) as plane`.

etcd, API server, controller manager, scheduler and kwok (which plays kubelets for pods that run nothing) as
processes; no container runtime, no root. What everybody writes stands in the API server's audit log.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml
from bench.processes import BenchError, Servers, free_port, rss_mb
from e2e.apiserver.plane import GO
from e2e.kind.binaries import BENCH_TOOLS, build_all, require_go
from e2e.kind.places import Places
from e2e.kind.steps import StepError

ROOT = Path(__file__).resolve().parents[2]
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "kubectl")
START_SECONDS = 60.0
NODES = 10
OPERATOR = "system:serviceaccount:dynamo-system:dynamo-operator"
CLIENT = "bench-client"
GO_ENV = {**os.environ, **GO}


def binaries() -> dict[str, str]:
    """Paths of the Kubernetes binaries, built where they are missing; raises `BenchError` that says what to do."""
    places = Places.of(os.environ)
    missing = [name for name in BINARIES if not os.access(places.bin / name, os.X_OK)]
    if missing:
        print(f"{places.bin} lacks {', '.join(missing)}: building them once, as make e2e does", flush=True)
        try:
            require_go()
            build_all(places, BENCH_TOOLS)
        except StepError as error:
            raise BenchError(f"{error}; or point DYNAMO_E2E_BIN to a folder that has {', '.join(BINARIES)}") from error
    return {name: str(places.bin / name) for name in BINARIES}


class Plane:
    """The processes, their addresses, and credentials of its three users: admin, operator, client."""

    def __init__(self, folder: Path) -> None:
        self.bin = binaries()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.servers = Servers(folder / "logs")
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.tokens = {user: secrets.token_hex(16) for user in ("admin", "operator", "client")}
        self.audit = folder / "audit.log"

    def __enter__(self) -> Plane:
        try:
            self._start()
        except BaseException:
            self.servers.__exit__()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.servers.__exit__(*failure)

    @property
    def authority(self) -> Path:
        """The certificate that the API server made for itself."""
        return self.folder / "pki" / "apiserver.crt"

    def kubeconfig(self, user: str) -> Path:
        """A file with which to log in as one of the users."""
        path = self.folder / f"{user}.kubeconfig"
        entries = {
            "clusters": [{"name": "x", "cluster": {"server": self.url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "x", "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }
        text = yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "x", **entries})
        path.write_text(text)
        path.chmod(0o600)
        return path

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """As admin; its output."""
        command = [self.bin["kubectl"], "--kubeconfig", str(self.kubeconfig("admin")), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise BenchError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def rss(self, role: str) -> float:
        """Resident memory of a role, in MB."""
        return rss_mb(self.servers.pids(role))

    def namespaces(self, names: Sequence[str]) -> None:
        """Makes them."""
        bodies = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names]
        self.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(bodies))

    def start(self, role: str, command: list[str], env: Mapping[str, str]) -> Path:
        """Another process that ends with the plane; its output's file."""
        return self.servers.start(role, command, env)

    def _start(self) -> None:
        self._files()
        self._store_and_server()
        self._until("the API server is ready", lambda: self._answers("/readyz"))
        self._controllers()
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            self.kubectl("apply", "--server-side", "-f", str(path))
        self._until("pipelines are served", lambda: self._answers("/apis/dynamo.dev/v1alpha1/dynamopipelines"))
        self.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all([*_rights(), *_nodes()]))
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")

    def _files(self) -> None:
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        users = (
            (self.tokens["admin"], "admin", "system:masters"),
            (self.tokens["operator"], OPERATOR, "system:serviceaccounts"),
            (self.tokens["client"], CLIENT, "system:masters"),
        )
        lines = [f'{token},{name},{number},"{group}"' for number, (token, name, group) in enumerate(users)]
        (self.folder / "tokens.csv").write_text("\n".join([*lines, ""]))
        (self.folder / "audit.yaml").write_text(json.dumps(_audit_policy()))

    def _store_and_server(self) -> None:
        store, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        etcd = [
            self.bin["etcd"], "--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error",
            "--listen-client-urls", store, "--advertise-client-urls", store, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
            "--quota-backend-bytes", str(4 << 30),
        ]  # fmt: skip
        self.start("etcd", etcd, GO_ENV)
        key = str(self.folder / "sa.key")
        server = [
            self.bin["kube-apiserver"], "--etcd-servers", store, "--bind-address", "127.0.0.1",
            "--advertise-address", "192.0.2.1",  # never asked; without one it needs a route out
            "--secure-port", str(self.port), "--cert-dir", str(self.folder / "pki"),
            "--token-auth-file", str(self.folder / "tokens.csv"), "--authorization-mode", "RBAC",
            "--service-account-issuer", "https://bench", "--service-account-key-file", key,
            "--service-account-signing-key-file", key, "--service-cluster-ip-range", "198.51.0.0/16",
            "--audit-policy-file", str(self.folder / "audit.yaml"), "--audit-log-path", str(self.audit),
            "--audit-log-mode", "batch", "--audit-log-batch-max-wait", "1s", "--audit-log-batch-throttle-enable=false",
        ]  # fmt: skip
        self.start("kube-apiserver", server, GO_ENV)

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not holds():
            self.servers.check()
            if time.monotonic() > end:
                raise BenchError(f"after {START_SECONDS:.0f} s it isn't so that {what}; see {self.folder}/logs")
            time.sleep(0.2)

    def _answers(self, path: str) -> bool:
        if not self.authority.exists():
            return False
        request = urllib.request.Request(
            f"{self.url}{path}", headers={"Authorization": f"Bearer {self.tokens['admin']}"}
        )
        trust = ssl.create_default_context(cafile=str(self.authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
        )
        try:
            with opener.open(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _controllers(self) -> None:
        config = str(self.kubeconfig("admin"))
        manager = [
            self.bin["kube-controller-manager"], "--kubeconfig", config, "--leader-elect=false",
            "--service-account-private-key-file", str(self.folder / "sa.key"), "--root-ca-file", str(self.authority),
            "--kube-api-qps", "100", "--kube-api-burst", "200", "--bind-address", "127.0.0.1",
            "--secure-port", str(free_port()), "--cert-dir", str(self.folder / "manager"),
        ]  # fmt: skip
        self.start("kube-controller-manager", manager, GO_ENV)
        scheduler = [
            self.bin["kube-scheduler"], "--kubeconfig", config, "--leader-elect=false", "--bind-address", "127.0.0.1",
            "--secure-port", str(free_port()), "--cert-dir", str(self.folder / "scheduler"),
            "--kube-api-qps", "200", "--kube-api-burst", "400",
        ]  # fmt: skip
        self.start("kube-scheduler", scheduler, GO_ENV)
        kwok = [
            self.bin["kwok"], "--kubeconfig", config, "--manage-all-nodes", "--cidr", "203.0.113.0/24",
            "--node-lease-duration-seconds", "40", "--node-ip", "198.51.100.1",
            "--server-address", f"127.0.0.1:{free_port()}",
        ]  # fmt: skip
        self.start("kwok", kwok, GO_ENV)


def _audit_policy() -> dict[str, object]:
    rules = [{"level": "Metadata", "users": [OPERATOR, CLIENT], "omitStages": ["RequestReceived"]}, {"level": "None"}]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}


def chart_rules() -> list[dict[str, object]]:
    """The operator's rights as the chart gives them: the template without its directives is plain YAML."""
    text = (ROOT / "charts/dynamo-platform/templates/_rules.tpl").read_text()
    rules: list[dict[str, object]] = yaml.safe_load("\n".join(x for x in text.splitlines() if not x.startswith("{{")))
    return rules


def _rights() -> list[dict[str, object]]:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "dynamo-operator"}}
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    subject = {"kind": "User", "name": OPERATOR, "apiGroup": "rbac.authorization.k8s.io"}
    target = {"kind": "ClusterRole", "name": "dynamo-operator", "apiGroup": "rbac.authorization.k8s.io"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "dynamo-system"}},
        {**role, "kind": "ClusterRole", "rules": [*chart_rules(), lease]},
        {**role, "kind": "ClusterRoleBinding", "roleRef": target, "subjects": [subject]},
    ]


def _nodes() -> list[dict[str, object]]:
    room = {"cpu": "1000", "memory": "1Ti", "pods": "1000", "ephemeral-storage": "1Ti"}
    status = {"allocatable": room, "capacity": room}
    annotations = {"kwok.x-k8s.io/node": "fake"}
    return [
        {
            "apiVersion": "v1", "kind": "Node", "status": status,
            "metadata": {"name": f"fake-{i}", "annotations": annotations},
        }
        for i in range(NODES)
    ]  # fmt: skip
