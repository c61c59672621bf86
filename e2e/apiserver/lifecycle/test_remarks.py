"""What a worker says of itself in `/health`, in the status of its pipeline; the kubelet is played."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from e2e.apiserver.client import Object, until
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import PODS

ADDRESS = "127.0.0.77"
SYSTEM_PORT = 9090
OURS: Object = {"spec": {"containers": [{"name": "worker", "image": "worker-openai:1"}]}}
SERVER: Object = {"engine": "openai", "image": "vllm/vllm-openai:v0.32.0", "replicas": 1, "podTemplate": OURS}
WAITS = "waits for http://127.0.0.1:8000, which answers 503 at /v1/models"


def test_a_worker_that_waits_for_its_server(world: World) -> None:
    """At first its server does not listen, by the kubelet's word; then it does, and the worker says what it lacks."""
    world.operators.through(world.plane.server, "asking", {"frontendProbing": {"enabled": True}})
    world.pipeline(spec={"components": [SERVER]})
    until("its pod is there", lambda: len(workers(world)) == 1)
    play(world, {"name": "server", "started": False, **running()}, None)
    until("the server is waited for", lambda: says(world, "waits for its server, which does not listen yet"))
    with answering({"reasons": [WAITS]}):
        play(
            world, {"name": "server", "started": True, "ready": True, **running()}, {"name": "worker", "started": True}
        )
        until("its words are there", lambda: says(world, f"is not ready yet: {WAITS}"))


def workers(world: World) -> list[Object]:
    """Return the pods of the workers."""
    return [pod for pod in world.items(PODS) if "-worker-" in pod["metadata"]["name"]]


def running() -> Object:
    """Return the state of a container that runs."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"state": {"running": {"startedAt": now}}, "image": "i", "imageID": "i", "restartCount": 0, "ready": False}


def play(world: World, server: Object, worker: Object | None) -> None:
    """Write the pod's status as its kubelet would."""
    (pod,) = workers(world)
    status: Object = {"phase": "Pending", "podIP": ADDRESS, "initContainerStatuses": [{**running(), **server}]}
    if worker is not None:
        status |= {"phase": "Running", "containerStatuses": [{**running(), **worker}]}
    world.admin.merge(PODS, world.namespace, pod["metadata"]["name"], {"status": status}, "status")


def says(world: World, words: str) -> bool:
    """Return whether the workers' condition has these words."""
    return words in world.condition("WorkersReady").get("message", "")


@contextmanager
def answering(body: Object) -> Iterator[None]:
    """Answer as a worker that isn't ready."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = json.dumps(body).encode()
            self.send_response(503)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer((ADDRESS, SYSTEM_PORT), Health) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield
        server.shutdown()
        thread.join()
