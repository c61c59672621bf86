"""The real operator's process, scraped, on an API server in memory that fails or hangs when told to: `OperatorSite`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from tests.fixtures_etcd import free_ports
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, body
from tests.processes import Process
from tests.waiting import eventually
from tests_alerts.monitoring import Monitoring

CONFIG: Final = {
    "images": {"frontend": "dynamo/frontend:1", "workers": {"default": "dynamo/worker:1"}},
    "etcd": {"endpoints": ["http://etcd:2379"]},
    "nats": {"url": "nats://nats:4222"},
}
HOME: Final = "dynamo"


class HangingApiServer(ApiServer):
    """Answers no write of workers as long as `answers` isn't set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET" and "statefulsets" in request.path:
            await self.answers.wait()
        return await super()._answer(request)


class OperatorSite:
    """One operator that serves the pipeline `llama`."""

    def __init__(self, namespace: str, folder: Path, monitoring: Monitoring) -> None:
        self.namespace, self.folder, self.monitoring = namespace, folder, monitoring
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = HangingApiServer()
        self._do(self.server.__aenter__())
        self.server.put(body(SMALLEST))
        (self.port,) = free_ports(1)
        self.process = self._start()
        monitoring.watch(f"http://127.0.0.1:{self.port}", namespace=namespace, pod="operator")

    def _start(self) -> Process:
        kubeconfig, config = self.folder / "kubeconfig", self.folder / "config.yaml"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": self.server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }))  # fmt: skip
        config.write_text(json.dumps(CONFIG))
        argv = [sys.executable, "-m", "dynamo.operator", f"--config={config}", "--host=127.0.0.1"]
        env = {**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": "one", "POD_NAMESPACE": HOME}
        return Process("operator", [*argv, f"--port={self.port}"], self.folder, env)

    def restart(self) -> None:
        self.process = self._start()

    def served(self) -> None:
        """Wait until the pipeline's parts are there."""
        eventually("the operator made its objects", lambda: self.server.names("StatefulSet"), 90)
        self.call(self.server.play)

    def edit(self, replicas: int) -> None:
        """Change the pipeline, as a user does."""
        live = self.server.one("DynamoPipeline", "llama")
        live["spec"]["components"][0]["replicas"] = replicas
        live["metadata"]["generation"] += 1
        self.call(lambda: self.server.put(live))

    def crowd(self, pipelines: int) -> None:
        """Add so many pipelines."""
        for number in range(pipelines):
            made = body(SMALLEST, f"more-{number}")
            made["metadata"]["uid"] = f"uid-of-{number}"
            self.call(lambda made=made: self.server.put(made))  # type: ignore[misc]

    def call(self, change: Callable[[], Any]) -> None:
        """Do something on the server's loop."""

        async def do() -> None:
            change()

        self._do(do())

    def _do(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self) -> None:
        self.monitoring.forget(self.namespace)
        self.process.kill()
        self.call(self.server.answers.set)
        self._do(self.server.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
