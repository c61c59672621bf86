"""A port of this machine that leads to a frontend in the cluster, through the API server.

Each connection is a WebSocket of its own to a pod that is ready at that moment, so that a
rollout or a lost pod costs the connections on it and no more.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator
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
HTTP: Final = "http"
SYSTEM: Final = "system"
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


@contextlib.contextmanager
def all_frontends(cluster: Cluster, name: str) -> Iterator[list[str]]:
    """Yield a URL of this machine for each frontend that is ready: its system port, or its HTTP port without one."""
    ready = ready_frontends(cluster, name)
    if not ready:
        raise nobody_ready(cluster, name)
    with contextlib.ExitStack() as doors:
        urls = []
        for pod in ready:
            port = port_of(pod, SYSTEM) or port_of(pod, HTTP)
            if port is None:
                continue
            door = Door(cluster, name, 0, (str(pod["metadata"]["name"]), port))
            doors.callback(door.close)
            threading.Thread(target=door.serve_quietly, name="forwards", daemon=True).start()
            urls.append(door.url)
        yield urls


def ready_frontends(cluster: Cluster, name: str) -> list[Live]:
    """Return the pods of frontends that are ready."""
    labels = naming.part_selector(name, naming.FRONTEND)
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return [pod for pod in cluster.items(PODS, cluster.namespace, labelSelector=selector) if is_ready(pod)]


def nobody_ready(cluster: Cluster, name: str) -> ClusterError:
    """Return the error that no frontend can be asked."""
    return ClusterError(f"no frontend of {cluster.namespace}/{name} is ready: dynamo status {name}")


def port_of(pod: Live, name: str) -> int | None:
    """Return the container port of a name."""
    for container in pod.get("spec", {}).get("containers") or []:
        for port in container.get("ports") or []:
            if port.get("name") == name:
                return int(port["containerPort"])
    return None


class Door:
    """A listening socket, and whom it leads to."""

    def __init__(self, cluster: Cluster, name: str, port: int, pod: tuple[str, int] | None = None) -> None:
        """Open it; it leads to that port of one `pod`, or to whichever frontend is ready when somebody connects."""
        self._cluster, self._name, self._only = cluster, name, pod
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

    def serve_quietly(self) -> None:
        """Serve until it is closed."""
        with contextlib.suppress(OSError):
            self.serve()

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
        if self._only is not None:
            return self._only
        for pod in ready_frontends(self._cluster, self._name):
            if port := port_of(pod, HTTP):
                return str(pod["metadata"]["name"]), port
        raise nobody_ready(self._cluster, self._name)


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
