"""A real API server on loopback (etcd and kube-apiserver, no nodes), and the command line against it.

Binaries lie in DYNAMO_E2E_BIN, by default where `make e2e` keeps them. What an operator would
write, these tests write themselves: they are about what a user sees of it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("DYNAMO_E2E_BIN", "~/.cache/dynamo-pipelines/bin")).expanduser()
CRD = ROOT / "crds" / "dynamo.dev_dynamopipelines.yaml"
ADMIN, NOBODY = "admin-token", "nobody-token"
PORTIONS = ("sdk", "operator", "frontend", "worker", "cli")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def binary(name: str) -> str:
    """Where a program lies; says how to get it where it doesn't."""
    path = BIN / name
    assert path.is_file(), f"{path} is missing: `make e2e` makes it, or DYNAMO_E2E_BIN says where it is"
    return str(path)


@dataclass(frozen=True)
class Server:
    """An API server, and how to start it again."""

    url: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]]
    commands: dict[str, list[str]]

    @property
    def authority(self) -> Path:
        """Whose certificate clients accept."""
        return self.folder / "certs" / "apiserver.crt"

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(self.commands[name], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait(30)

    def close(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            process.wait(30)

    def wait(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            running = all(process.poll() is None for process in self.processes.values())
            assert running, (self.folder / "kube-apiserver.log").read_text()[-2000:]
            if self.authority.is_file():
                command = [binary("kubectl"), "--kubeconfig", str(self.kubeconfig(ADMIN)), "get", "--raw", "/readyz"]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return
            time.sleep(0.2)
        raise AssertionError(f"the API server isn't ready: see {self.folder}")

    def with_crd(self) -> Server:
        self.kubectl("apply", "-f", str(CRD))
        self.kubectl("wait", "--for=condition=Established", "crd/dynamopipelines.dynamo.dev", "--timeout=30s")
        return self

    def kubeconfig(self, token: str, namespace: str = "default", name: str = "kubeconfig") -> Path:
        """A file for one user; its context is called `test`."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
        }
        path = self.folder / f"{name}-{uuid.uuid4().hex[:8]}"
        path.write_text(yaml.safe_dump(content))
        return path

    def kubectl(self, *words: str, text: str = "") -> str:
        """As an administrator."""
        command = [binary("kubectl"), "--kubeconfig", str(self.kubeconfig(ADMIN)), *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@dataclass(frozen=True)
class Shell:
    """`dynamo` as a user of one namespace runs it."""

    server: Server
    namespace: str
    config: Path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        path = os.pathsep.join(str(ROOT / portion) for portion in PORTIONS)
        programs = os.pathsep.join([str(BIN), *os.environ["PATH"].split(os.pathsep)])
        return {
            "PATH": programs, "HOME": str(self.server.folder), "PYTHONPATH": path, "PYTHONSAFEPATH": "1",
            "KUBECONFIG": str(self.config), "NO_PROXY": "*", "COLUMNS": "200", **(more or {}),
        }  # fmt: skip

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "dynamo.cli", *words], env=self.environment(), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more,
        )  # fmt: skip

    def run(
        self, *words: str, text: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dynamo.cli", *words], env=self.environment(environment), text=True, input=text,
            capture_output=True, timeout=100, check=False,
        )  # fmt: skip

    def as_user(self, token: str) -> Shell:
        """The same with other credentials."""
        return Shell(self.server, self.namespace, self.server.kubeconfig(token, self.namespace))

    def kubectl(self, *words: str, text: str = "") -> str:
        return self.server.kubectl("-n", self.namespace, *words, text=text)

    def live(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "dp", name, "-o", "json"))
        return found

    def write_status(self, name: str, ready: str, reason: str, message: str, **more: Any) -> None:
        """What an operator would say of the current generation."""
        live = self.live(name)
        generation, stalled = live["metadata"]["generation"], more.pop("stalled", False)
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


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests, which keep to namespaces of their own."""
    found = _control_plane(tmp_path_factory.mktemp("control-plane"))
    try:
        _start(found)
        yield found.with_crd()
    finally:
        found.close()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Server]:
    """A server of one's own, without our CRD."""
    found = _control_plane(tmp_path)
    try:
        _start(found)
        yield found
    finally:
        found.close()


@pytest.fixture
def shell(server: Server) -> Shell:
    """In a fresh namespace, as an administrator."""
    return shell_in(server)


@pytest.fixture
def shell_of() -> Callable[[Server], Shell]:
    """For a server of one's own."""
    return shell_in


def shell_in(server: Server) -> Shell:
    """The same for any server."""
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    server.kubectl("create", "namespace", namespace)
    return Shell(server, namespace, server.kubeconfig(ADMIN, namespace))


def _control_plane(folder: Path) -> Server:
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n{NOBODY},nobody,2\n')
    client, peer, port = free_port(), free_port(), free_port()
    etcd = f"http://127.0.0.1:{client}"
    commands = {
        "etcd": [
            binary("etcd"), f"--data-dir={folder}/etcd", f"--listen-client-urls={etcd}", "--unsafe-no-fsync",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
        ],
        "kube-apiserver": [
            binary("kube-apiserver"), f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={port}",
            f"--cert-dir={folder}/certs", f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=198.51.100.128/25",
            "--disable-admission-plugins=ServiceAccount", "--shutdown-delay-duration=0s",
        ],
    }  # fmt: skip
    return Server(f"https://127.0.0.1:{port}", folder, {}, commands)


def _start(server: Server) -> None:
    for name in server.commands:
        server.start(name)
    server.wait()
