"""A whole deployment per test: real etcd, real NATS, frontends and workers as processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests import waiting
from tests.environments import without
from tests.fixtures_etcd import CHOSEN, free_ports
from tests.processes import Process


def eventually(what: str, check: Callable[[], Any], within: float = 20.0) -> Any:
    """Wait as `waiting.eventually`, also for a server that does not answer yet."""
    return waiting.eventually(what, check, within, despite=(httpx.HTTPError, OSError))


def binary(name: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    binary = (os.environ.get(CHOSEN) if name == "etcd" else None) or shutil.which(name, path=path)
    assert binary, f"{name} is not installed"
    return binary


class Stack:
    """etcd and NATS on loopback ports of their own, plus what a test starts on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd_port, self.peer_port, self.nats_port, self.nats_http = free_ports(4)
        self.etcd_endpoints = [f"http://127.0.0.1:{self.etcd_port}"]
        self.nats_ports = [self.nats_port]
        self.processes: list[Process] = []
        self._path = without(folder / "absent", "aiohttp")
        self.etcd = self.start_etcd()
        argv = [binary("nats-server"), "-a", "127.0.0.1", "-p", str(self.nats_port), "-m", str(self.nats_http)]
        self.nats = self.start("nats", argv)
        eventually("etcd listens", lambda: _listens(self.etcd_port))
        eventually("nats listens", lambda: _listens(self.nats_port))

    def start_etcd(self) -> Process:
        """A fresh, empty etcd on the stack's port."""
        data = tempfile.mkdtemp(dir=self.folder)
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        argv = [binary("etcd"), "--data-dir", data, "--unsafe-no-fsync", "--log-level", "error"]
        argv += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        argv += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self.etcd = self.start("etcd", argv)
        return self.etcd

    def use_etcd_cluster(self) -> list[Process]:
        """Three nodes in place of the one; what is started from now on uses them. Returns when they serve."""
        self.etcd.kill()
        ports = free_ports(6)
        peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
        members = ",".join(f"node-{n}={peer}" for n, peer in enumerate(peers))
        self.etcd_endpoints = [f"http://127.0.0.1:{port}" for port in ports[:3]]
        nodes = []
        for n, (client, peer) in enumerate(zip(self.etcd_endpoints, peers, strict=True)):
            argv = [binary("etcd"), "--name", f"node-{n}", "--data-dir", str(self.folder / f"node-{n}")]
            argv += ["--unsafe-no-fsync", "--log-level", "error", "--initial-cluster", members]
            argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
            argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            nodes.append(self.start(f"node-{n}", argv))
        for n in range(3):
            self.wait_for_node(n)
        return nodes

    def use_nats_cluster(self) -> list[Process]:
        """Three servers with routes in place of the one; what is started from now on uses them."""
        self.nats.kill()
        ports = free_ports(6)
        routes = ",".join(f"nats-route://127.0.0.1:{port}" for port in ports[3:])
        self.nats_ports = ports[:3]
        servers = []
        for n, (client, route) in enumerate(zip(self.nats_ports, ports[3:], strict=True)):
            argv = [binary("nats-server"), "-a", "127.0.0.1", "-p", str(client), "--name", f"nats-{n}"]
            argv += ["--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{route}", "--routes", routes]
            servers.append(self.start(f"nats-{n}", argv))
        for port in self.nats_ports:
            eventually("nats listens", lambda: _listens(port))  # noqa: B023 - waited for at once
        return servers

    def wait_for_node(self, number: int) -> None:
        """Return when a node of the cluster knows its leader and serves."""
        health = f"{self.etcd_endpoints[number]}/health"
        eventually(f"etcd node {number} serves", lambda: httpx.get(health, timeout=2).json()["health"] == "true", 60)

    @property
    def env(self) -> dict[str, str]:
        return {
            "ETCD_ENDPOINTS": ",".join(self.etcd_endpoints),
            "NATS_SERVER": ",".join(f"nats://127.0.0.1:{port}" for port in self.nats_ports),
            "DYN_TOKEN_ECHO_DELAY_MS": "5",
            "PYTHONPATH": self._path,
        }

    def start(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> Process:
        """Start something, with this in its environment; it ends with the stack."""
        self.processes.append(Process(name, argv, self.folder, {**os.environ, **(env or {})}))
        return self.processes[-1]

    def worker(
        self, name: str = "worker", engine: str = "echo_core", *flags: str, component: str = "backend", **env: str
    ) -> Process:  # fmt: skip
        argv = [sys.executable, "-m", "dynamo.worker", "--engine", engine, "--model-name", "m", *flags]
        argv += ["--endpoint", f"dyn://test.{component}.generate", "--system-port", "0"]
        return self.start(name, argv, {**self.env, **env})

    def frontend(self, *flags: str, name: str = "frontend", **env: str) -> Frontend:
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
        process = self.start(name, [*argv, "--namespace", "test", *flags], {**self.env, **env})
        return Frontend(process, f"http://127.0.0.1:{port}")

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()


class Frontend:
    """A frontend process and its address."""

    def __init__(self, process: Process, url: str) -> None:
        self.process, self.url = process, url

    def models(self) -> list[str]:
        return [m["id"] for m in httpx.get(f"{self.url}/v1/models", timeout=5).json()["data"]]

    def wait_for(self, model: str = "m", instances: int = 1) -> None:
        eventually(f"{model} is served by {instances}", lambda: self.instances() >= instances, 60)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that have these labels."""
        return metric(f"{self.url}/metrics", f"dynamo_frontend_{name}", **labels)

    def instances(self) -> int:
        """Those that answer requests; prefill workers aren't among them."""
        models = httpx.get(f"{self.url}/health", timeout=5).json()["models"]
        return sum(int(model["instances"]) for model in models.values())


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels; 0 where there are none."""
    families = text_string_to_metric_families(httpx.get(url, timeout=5).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def _listens(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Stack]:
    """A deployment, and the end of all that was started on it."""
    stack = Stack(folder)
    try:
        yield stack
    finally:
        stack.close()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """An empty deployment, for a test that kills, counts or configures."""
    with opened(tmp_path) as stack:
        yield stack


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One for all tests of a file that leave it as it was: a frontend and a worker cost two seconds of CPU to start."""
    with opened(tmp_path_factory.mktemp("shared")) as stack:
        yield stack


@pytest.fixture
def within() -> Callable[..., Any]:
    """`eventually`, for tests."""
    return eventually
