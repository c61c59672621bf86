"""A control plane on loopback: etcd, kube-apiserver with an audit log, kube-controller-manager. `Plane.start`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from e2e.apiserver.client import Client, Object, until

from dynamo.operator.kube.resources import Resource

GO = {"GOGC": "400"}
"""Memory for time: an API server needs 2.6 s of CPU to start instead of 3.8, and a fifth less for each pipeline."""

CONTROLLERS = (
    "deployment-controller", "replicaset-controller", "statefulset-controller", "garbage-collector-controller",
    "namespace-controller", "serviceaccount-controller", "disruption-controller",
    "resourcequota-controller", "resourceclaim-controller",
)  # fmt: skip
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
CRDS = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
WRITES = ("create", "update", "patch", "delete", "deletecollection")


class Plane:
    """Its processes; `folder` holds all that they write."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._bin, self.folder = binaries, folder
        self._etcd_port, self._peer_port, self.port = free_ports(3)
        self.server = f"https://127.0.0.1:{self.port}"
        self.admin_token = secrets.token_hex(16)
        self.admin = Client(self.server, self.admin_token)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Until the API server answers and the controllers run."""
        self.demand("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
        self._files()
        self._etcd()
        self.start_apiserver()
        self._run("kube-controller-manager", *self._controller_flags())

    def stop(self) -> None:
        """Everything, at once: nothing of it is kept."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait(10)

    def start_apiserver(self) -> None:
        """Until it is ready."""
        self._run("kube-apiserver", *self._apiserver_flags())
        until("the API server is ready", lambda: self.admin.code("GET", "/readyz") == 200)

    def kill_apiserver(self) -> None:
        """As a crash does."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def demand(self, *names: str) -> None:
        """Binaries that must be there."""
        for name in names:
            assert (self._bin / name).is_file(), f"{self._bin / name}: `make e2e` builds it, or set DYNAMO_E2E_BIN"

    def binary(self, name: str) -> Path:
        """Where a program lies."""
        self.demand(name)
        return self._bin / name

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """As the administrator; its output."""
        command = [str(self._bin / "kubectl"), f"--kubeconfig={self.kubeconfig('admin', self.admin_token)}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run_helm(self, *arguments: str) -> str:
        """Its output."""
        done = subprocess.run(
            [self.binary("helm"), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kubeconfig(self, name: str, token: str, server: str = "") -> Path:
        """A file for whoever has the token; of a proxy where a server is given."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(_kubeconfig(server or self.server, token)))
        path.chmod(0o600)
        return path

    def audit(self, user: str, since: int = 0) -> list[Object]:
        """What this user asked, from the given entry of the log on; finished requests only."""
        return [entry for entry in self._entries(since) if entry["user"].get("username") == user]

    def mark(self) -> int:
        """The log's length, for `audit`."""
        return sum(1 for _ in self._entries(0))

    def writes(self, user: str, since: int = 0) -> list[Object]:
        """Its mutating requests, but for the lease's."""
        return [
            one
            for one in self.audit(user, since)
            if one["verb"] in WRITES and one.get("objectRef", {}).get("resource") != "leases"
        ]

    def _entries(self, since: int) -> Iterator[Object]:
        with (self.folder / "audit.log").open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if number >= since and line.endswith("\n"):
                    yield json.loads(line)

    def _files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "audit.json").write_text(json.dumps(AUDIT))
        (self.folder / "tokens.csv").write_text(f'{self.admin_token},admin,admin,"system:masters"\n')
        (self.folder / "audit.log").touch()
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self.folder / "sa.key"), "2048"], check=True, capture_output=True
        )

    def _etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self._run(
            "etcd", "--unsafe-no-fsync", f"--data-dir={self.folder / 'etcd'}", "--log-level=error",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip

    def _apiserver_flags(self) -> list[str]:
        key = self.folder / "sa.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", "--bind-address=127.0.0.1",
            # It takes no loopback address, and finds no other where there is no route out (`make e2e`'s own network).
            "--advertise-address=192.0.2.1",
            f"--secure-port={self.port}", f"--cert-dir={self.folder / 'certs'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=198.18.128.0/18",
            f"--audit-policy-file={self.folder / 'audit.json'}", f"--audit-log-path={self.folder / 'audit.log'}",
            "--audit-log-maxsize=1000", "--allow-privileged",
        ]  # fmt: skip

    def _controller_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('controllers', self.admin_token)}", "--leader-elect=false",
            f"--controllers={','.join(CONTROLLERS)}", "--bind-address=127.0.0.1", "--secure-port=0",
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            # Collecting the children of a dozen pipelines takes 18 s at the default of 20 a second.
            "--kube-api-qps=200", "--kube-api-burst=400",
        ]  # fmt: skip

    def _run(self, name: str, *flags: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._bin / name), *flags], stdout=log, stderr=log, env={**os.environ, **GO}
            )


def free_ports(number: int) -> list[int]:
    """On loopback; taken by nobody now."""
    held = [socket.socket() for _ in range(number)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def _kubeconfig(server: str, token: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
