"""Groups of pods that are one worker: every pod learns its rank and finds the leader; whole groups count, come and go.

No engine that runs over several nodes works without GPUs, so a few lines of Python stand in for it. They read the
same argv, and meet as engines do: the followers call the leader by the name that they were given.
"""

from __future__ import annotations

from e2e.cluster import wait_for
from e2e.namespace import Namespace
from e2e.pipelines import Object, is_ready, pipeline, workers

NAME = "grouped"
STEP_SECONDS = 240
RANK, GROUP = "apps.kubernetes.io/pod-index", "dynamo.dev/group"
ENGINE = """
import http.server, os, signal, socket, sys, threading, time

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
flag = lambda name: sys.argv[sys.argv.index(name) + 1]
rank, nodes = int(flag("--node-rank")), int(flag("--num-nodes"))
host, port = flag("--leader-addr").split(":")
met = threading.Event()

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if met.is_set() or self.path == "/live" else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass

system = http.server.ThreadingHTTPServer(("", int(flag("--system-port"))), Health)
threading.Thread(target=system.serve_forever, daemon=True).start()
if rank == 0:
    server = socket.create_server(("", int(port)))
    here = set()
    while len(here) < nodes - 1:
        here.add(server.accept()[0].recv(9))
    met.set()
    while True:
        server.accept()
while True:
    try:
        with socket.create_connection((host, int(port)), 5) as leader:
            leader.send(str(rank).encode())
        met.set()
    except OSError as error:
        print(error, flush=True)
    time.sleep(1)
"""


def test_group(namespace: Namespace) -> None:
    """Two groups of three pods with a GPU each become two workers; one is scaled away without touching the other."""
    namespace.apply(_pipeline())
    wait_for("two workers", lambda: _counted(namespace) == "2/2", STEP_SECONDS)
    pods = workers(namespace, NAME)
    assert sorted(_place(pod) for pod in pods) == [(group, rank) for group in "01" for rank in "012"]
    assert all(is_ready(pod) for pod in pods)
    for pod in pods:
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    kept = {pod["metadata"]["uid"] for pod in pods if _place(pod)[0] == "0"}
    namespace.kubectl("scale", f"dp/{NAME}", "--replicas=1")
    wait_for("one group is left", lambda: len(workers(namespace, NAME)) == len(kept), STEP_SECONDS)
    assert {pod["metadata"]["uid"] for pod in workers(namespace, NAME)} == kept
    wait_for("it is counted", lambda: _counted(namespace) == "1/1", STEP_SECONDS)
    services = namespace.list("v1/Service", f"dynamo.dev/pipeline={NAME},{GROUP}")
    assert [service["metadata"]["labels"][GROUP] for service in services] == ["0"]


def test_a_group_with_a_pod_missing_is_no_worker(namespace: Namespace) -> None:
    """It counts again when all of it is there."""
    namespace.apply(_pipeline())
    wait_for("two workers", lambda: _counted(namespace) == "2/2", STEP_SECONDS)
    follower = next(pod for pod in workers(namespace, NAME) if _place(pod) == ("1", "2"))
    namespace.kubectl("delete", "pod", follower["metadata"]["name"], "--wait=false")
    wait_for("it is missed", lambda: _counted(namespace) == "1/2", STEP_SECONDS)
    wait_for("it is back", lambda: _counted(namespace) == "2/2", STEP_SECONDS)


def _pipeline() -> Object:
    command = {"name": "worker", "command": ["python", "-c", ENGINE]}
    worker = {
        "engine": "vllm", "tensorParallelSize": 3, "nodes": 3, "sharedMemory": "64Mi",
        "podTemplate": {"spec": {"containers": [command]}},
    }  # fmt: skip
    return pipeline(NAME, worker, model={"source": "/model", "name": "m"}, replicas=2)


def _counted(namespace: Namespace) -> str:
    found = namespace.pipeline(NAME)
    return str(found.get("status", {}).get("workers", ""))


def _place(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[GROUP], labels[RANK]
