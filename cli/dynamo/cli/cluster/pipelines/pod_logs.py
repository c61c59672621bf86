"""What the pods of a pipeline write, merged by time; while it follows, pods that come later join in."""

from __future__ import annotations

import contextlib
import heapq
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import urllib3

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.pipelines.follow import interruptible
from dynamo.cli.cluster.pipelines.progress import waiting_text
from dynamo.cli.cluster.pipelines.status import pipeline_called
from dynamo.operator.cluster.observe import label
from dynamo.operator.kube.resources import PODS
from dynamo.operator.manifests import naming

_MOST_WAITING: Final = 10_000
_LOOK_EVERY: Final = 2.0


class Wanted(NamedTuple):
    """Command line of `dynamo logs` on a cluster, understood."""

    name: str
    since: datetime | None
    tail: int | None
    previous: bool


class PodLine(NamedTuple):
    """One line of one pod."""

    at: str
    pod: str
    text: str


Print = Callable[[PodLine, bool], None]


def parse_line(pod: str, raw: bytes) -> PodLine:
    """Read `TIME TEXT`, as the API server gives it when it is asked for times."""
    at, _, text = raw.decode(errors="replace").rstrip("\r\n").partition(" ")
    return PodLine(at, pod, text)


def split_name(name: str) -> tuple[str, str]:
    """Return pipeline and component (empty: all)."""
    pipeline, _, component = name.partition("/")
    return pipeline, component


def short_name(pipeline: str, pod: Live) -> str:
    """Return a pod's name without what all have in common."""
    return str(pod["metadata"]["name"]).removeprefix(f"{pipeline}-")


def pods_of(cluster: Cluster, name: str) -> list[Live]:
    """Return the pods of a pipeline, of `pipeline/component`, or the pod of this name.

    Raises where there is no such thing.
    """
    pipeline, component = split_name(name)
    pods = _labelled(cluster, pipeline, component)
    if pods:
        return pods
    pod = None if component else cluster.find(PODS.path(cluster.namespace, name))
    if pod is not None:
        return [pod]
    pipeline_called(cluster, cluster.namespace, pipeline)
    known = sorted({label(p, naming.COMPONENT) for p in _labelled(cluster, pipeline, "")})
    if component and known:
        raise ClusterError(f"{pipeline} has no pods of {component!r}: it has {', '.join(known)}")
    raise ClusterError(f"{cluster.namespace}/{pipeline} has no pods: see dynamo status {pipeline}")


def _labelled(cluster: Cluster, pipeline: str, component: str) -> list[Live]:
    labels = {naming.PIPELINE: pipeline} | ({naming.COMPONENT: component} if component else {})
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return cluster.items(PODS, cluster.namespace, labelSelector=selector)


def print_logs(cluster: Cluster, wanted: Wanted, show: Print, *, follow: bool) -> None:
    """Print what there is, by time; then what comes, until Ctrl-C or until no pod is left."""
    with interruptible():
        pods = pods_of(cluster, wanted.name)
        if follow:
            _Following(cluster, wanted, show).run(pods)
            return
        lines = heapq.merge(*(_past(cluster, wanted, pod) for pod in pods))
        for line in lines if wanted.tail is None else deque(lines, maxlen=wanted.tail):
            show(line, len(pods) > 1)


def query(wanted: Wanted, pod: Live, *, follow: bool) -> dict[str, str]:
    """Return the query as the API server wants it."""
    parameters = {"timestamps": "true", "container": str(pod["spec"]["containers"][0]["name"])}
    if follow:
        parameters["follow"] = "true"
    if wanted.tail is not None:
        parameters["tailLines"] = str(wanted.tail)
    if wanted.since is not None:
        parameters["sinceTime"] = wanted.since.strftime("%Y-%m-%dT%H:%M:%SZ")
    if wanted.previous:
        parameters["previous"] = "true"
    return parameters


def _past(cluster: Cluster, wanted: Wanted, pod: Live) -> list[PodLine]:
    try:
        raw = cluster.raw("GET", _path(cluster, pod), query(wanted, pod, follow=False))
    except RefusedError as refused:
        return _nothing_yet(pod, refused)
    if not raw and has_not_begun(pod):
        print(waiting_text(pod), file=sys.stderr)
    return [parse_line(short_name(split_name(wanted.name)[0], pod), line) for line in raw.split(b"\n") if line]


def has_not_begun(pod: Live) -> bool:
    """Tell whether no container ran yet: the API server has an empty log of a pod without a node."""
    return (pod.get("status") or {}).get("phase") in (None, "Pending")


def _nothing_yet(pod: Live, refused: RefusedError) -> list[PodLine]:
    """Say that a container never started, so it has no log; the other pods' are shown."""
    if refused.status != 400:
        raise refused
    print(waiting_text(pod) or f"pod {pod['metadata']['name']}: {refused.said}", file=sys.stderr)
    return []


def _path(cluster: Cluster, pod: Live) -> str:
    return PODS.path(cluster.namespace, pod["metadata"]["name"], "log")


class _Following:
    """A thread for each pod that writes, one queue, and a look now and then for pods that come, go or start again."""

    def __init__(self, cluster: Cluster, wanted: Wanted, show: Print) -> None:
        self._cluster, self._wanted, self._show = cluster, wanted, show
        self._lines: queue.Queue[PodLine] = queue.Queue(_MOST_WAITING)
        self._threads: dict[str, threading.Thread] = {}
        self._last: dict[str, str] = {}
        """When each pod last wrote, so that a stream that broke goes on where it was."""

    def run(self, pods: Sequence[Live]) -> None:
        """Wait until no pod is left that could write."""
        while pods:
            self._attend(pods)
            self._drain(len(pods) > 1 or len(self._threads) > 1)
            pods = [pod for pod in self._now() if not _has_ended(pod)]
        while any(thread.is_alive() for thread in self._threads.values()) or not self._lines.empty():
            self._drain(len(self._threads) > 1)

    def _drain(self, prefixed: bool) -> None:
        end = time.monotonic() + _LOOK_EVERY
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._show(self._lines.get(timeout=left), prefixed)

    def _now(self) -> list[Live]:
        pipeline, component = split_name(self._wanted.name)
        pods = _labelled(self._cluster, pipeline, component)
        pod = None if pods or component else self._cluster.find(PODS.path(self._cluster.namespace, pipeline))
        return [pod] if pod else pods

    def _attend(self, pods: Iterable[Live]) -> None:
        for pod in pods:
            uid = str(pod["metadata"]["uid"])
            known = self._threads.get(uid)
            if not has_not_begun(pod) and (known is None or not known.is_alive()):
                thread = threading.Thread(target=self._read, args=(pod, uid), name="pod's log", daemon=True)
                self._threads[uid] = thread
                thread.start()

    def _read(self, pod: Live, uid: str) -> None:
        name, last = short_name(split_name(self._wanted.name)[0], pod), self._last.get(uid)
        asked = query(self._wanted, pod, follow=True)
        if last:
            asked = {key: value for key, value in asked.items() if key != "tailLines"} | {"sinceTime": last}
        try:
            with self._cluster.open("GET", _path(self._cluster, pod), asked, read_seconds=None) as response:
                for raw in _lines_of(response):
                    line = parse_line(name, raw)
                    if last is None or line.at > last:
                        self._lines.put(line)
                        self._last[uid] = line.at
        except RefusedError as refused:
            if refused.status not in (400, 404):  # between two runs of a container, or gone
                print(f"{pod['metadata']['name']}: {refused.message}", file=sys.stderr)
        except ClusterError as error:
            print(f"{pod['metadata']['name']}: {error.message} (goes on asking)", file=sys.stderr)


def _has_ended(pod: Live) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _lines_of(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(65536, decode_content=True):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
