"""A port of this machine that leads to a frontend in the cluster, through the API server.

Each connection is a WebSocket of its own to a pod that is ready at that moment, so that a
rollout or a lost pod costs the connections on it and no more.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import Any, Final, NoReturn

import click
from kubernetes import client
from kubernetes.stream import portforward

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.pipelines.find_url import located
from dynamo.cli.cluster.pipelines.follow import interruptible
from dynamo.cli.cluster.pipelines.next_steps import forward_port
from dynamo.operator.cluster.observe import is_ready
from dynamo.operator.kube.resources import PODS
from dynamo.operator.manifests import naming

LOOPBACK: Final = "127.0.0.1"
_MOST_CONNECTIONS: Final = 256
_PIECE: Final = 65536


def forward_until_interrupted(cluster: Cluster, name: str, port: int | None) -> NoReturn:
    """Print the URL, then lead connections until Ctrl-C."""
    location = located(cluster, name)
    door = Door(cluster, name, forward_port(location) if port is None else port)
    click.echo(door.url)
    click.echo(f"Forwarding to {cluster.namespace}/{name}. Press Ctrl-C to stop.", err=True)
    sys.stdout.flush()
    with interruptible(), contextlib.closing(door):
        door.serve()


def http_port_of(pod: Live) -> int | None:
    """Return the container port that is called http."""
    for container in pod.get("spec", {}).get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == "http":
                return int(port["containerPort"])
    return None


class Door:
    """A listening socket, and whom it leads to."""

    def __init__(self, cluster: Cluster, name: str, port: int) -> None:
        self._cluster, self._name = cluster, name
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        self._pod()
        try:
            self._listener = socket.create_server((LOOPBACK, port))
        except OSError as error:
            raise ClusterError(f"port {port} can't be opened: {error.strerror}: choose another with --port") from None

    @property
    def url(self) -> str:
        """Return where clients of this machine connect."""
        return f"http://{LOOPBACK}:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Take no new connections; running ones end with the process."""
        self._listener.close()

    def serve(self) -> NoReturn:
        """Start a thread for each connection; where there are too many, the next waits in the backlog."""
        while True:
            self._places.acquire()
            here, _ = self._listener.accept()
            threading.Thread(target=self._lead, args=(here,), name="forwarded", daemon=True).start()

    def _lead(self, here: socket.socket) -> None:
        try:
            with here:
                self._connect(here)
        except ClusterError as error:
            click.echo(f"Error: {error.message}", err=True)
        finally:
            self._places.release()

    def _connect(self, here: socket.socket) -> None:
        pod, port = self._pod()
        api = client.CoreV1Api(client.ApiClient(self._cluster.api.configuration))
        try:
            way: Any = portforward(
                api.connect_get_namespaced_pod_portforward, pod, self._cluster.namespace, ports=str(port)
            )
        except client.ApiException as error:
            raise ClusterError(f"pod {pod} can't be reached: {' '.join(str(error.reason).split())}") from None
        there = way.socket(port)
        there.setblocking(True)
        back = threading.Thread(target=_copy, args=(there, here), name="forwarded back", daemon=True)
        back.start()
        _copy(here, there)
        back.join()
        if way.error(port):
            raise ClusterError(f"pod {pod}: {way.error(port).strip()}")

    def _pod(self) -> tuple[str, int]:
        """Return a frontend that is ready, and its port."""
        labels = naming.part_selector(self._name, naming.FRONTEND)
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        for pod in self._cluster.items(PODS, self._cluster.namespace, labelSelector=selector):
            port = http_port_of(pod)
            if is_ready(pod) and port:
                return str(pod["metadata"]["name"]), port
        raise ClusterError(
            f"no frontend of {self._cluster.namespace}/{self._name} is ready: dynamo status {self._name}"
        )


def _copy(source: Any, sink: Any) -> None:
    """Wait until one of both ends; then both do."""
    try:
        while piece := source.recv(_PIECE):
            sink.sendall(piece)
    except OSError:
        pass
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
