"""A namespace with a pipeline's processes, scraped as its pods would be: `Site`, and traffic on it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

import httpx
from tests.environments import environment, without
from tests.fixtures_etcd import free_ports
from tests.processes import Process
from tests.waiting import eventually
from tests_alerts.monitoring import Monitoring

PIPELINE: Final = "llm"
_PATIENCE: Final = 120.0
_FRONTEND: Final = (sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--shutdown-delay-secs", "0")
_WORKER: Final = (sys.executable, "-m", "dynamo.worker", "--model-name", "m")


class Traffic:
    """Requests that follow each other in `threads`, until `stop`; what becomes of them is for the metrics to say."""

    def __init__(self, url: str, headers: dict[str, str], threads: int, **body: Any) -> None:
        self._url, self._headers = url, headers
        self._body = {"model": "m", "prompt": "tell me more", "max_tokens": 4, **body}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._over.is_set():
            with suppress(httpx.HTTPError), httpx.Client(timeout=30, headers=self._headers) as client:
                body = {**self._body, "stream": True}
                with client.stream("POST", f"{self._url}/v1/completions", json=body) as answer:
                    for _ in answer.iter_bytes():
                        if self._over.is_set():
                            return
            self._over.wait(0.05)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(40)


class Site:
    """One frontend and its workers, in a namespace of their own."""

    def __init__(self, namespace: str, folder: Path, monitoring: Monitoring, servers: dict[str, str]) -> None:
        self.namespace, self.folder, self.monitoring = namespace, folder, monitoring
        self._env = environment(folder, PYTHONPATH=without(folder / "absent", "aiohttp", "fastokens"), **servers)
        self.processes: list[Process] = []
        self._traffic: list[Traffic] = []
        self.url = ""
        self.headers: dict[str, str] = {}
        """Of each request: a key, where the frontend asks for one."""

    def frontend(self, *flags: str) -> Process:
        """Start the frontend; it is ready when this returns."""
        http, system = free_ports(2)
        argv = [*_FRONTEND, "--http-port", str(http), "--system-port", str(system), "--namespace", self.namespace]
        process = self._start("frontend", [*argv, *flags])
        self.url = str(process.ready_line(_PATIENCE)["url"])
        self._scrape(system, "frontend", "frontend")
        return process

    def worker(self, name: str = "worker", *flags: str, engine: str = "mocker", component: str = "backend") -> Process:
        """Start a worker; a second one of the same name takes the first one's place and port."""
        known = next((process for process in self.processes if process.name == name), None)
        if known is None:
            (port,) = free_ports(1)
        else:
            self.processes.remove(known)
            port = int(known.argv[known.argv.index("--system-port") + 1])
            known.kill()
        endpoint = f"dyn://{self.namespace}.{component}.generate"
        argv = [*_WORKER, "--engine", engine, "--endpoint", endpoint, "--system-port", str(port), *flags]
        process = self._start(name, argv)
        process.ready_line(_PATIENCE)
        self._scrape(port, name, component)
        return process

    def program(self, name: str, file: Path, *words: str) -> Process:
        """Start a user's program; nothing of it is scraped."""
        return self._start(name, [sys.executable, str(file), *words])

    def served(self, instances: int = 1) -> None:
        """Wait until the frontend routes to so many workers."""

        def count() -> int:
            models = httpx.get(f"{self.url}/health", timeout=5, headers=self.headers).json()["models"]
            return sum(int(model["instances"]) for model in models.values())

        eventually(f"{instances} serve", lambda: count() >= instances, _PATIENCE, despite=(httpx.HTTPError, OSError))

    def traffic(self, threads: int = 2, **body: Any) -> Traffic:
        """Begin to ask, until told to stop or the site closes."""
        self._traffic.append(Traffic(self.url, self.headers, threads, **body))
        return self._traffic[-1]

    def _start(self, name: str, argv: list[str]) -> Process:
        self.processes.append(Process(name, argv, self.folder, self._env))
        return self.processes[-1]

    def _scrape(self, port: int, pod: str, component: str) -> None:
        self.monitoring.watch(
            f"http://127.0.0.1:{port}", namespace=self.namespace, pod=pod, dynamo_dev_pipeline=PIPELINE,
            dynamo_dev_component=component,
        )  # fmt: skip

    def close(self) -> None:
        """End all, those that are paused as well."""
        self.monitoring.forget(self.namespace)
        for traffic in self._traffic:
            traffic.stop()
        for process in reversed(self.processes):
            process.kill()


@contextmanager
def paused(process: Process) -> Iterator[None]:
    """Freeze a process, as one that hangs."""
    process.signal(SIGSTOP)
    try:
        yield
    finally:
        process.signal(SIGCONT)
