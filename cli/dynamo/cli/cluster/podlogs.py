"""What the pods of a pipeline write, merged by time; while it follows, pods that come later join in."""

from __future__ import annotations

import heapq
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import urllib3

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.follow import interruptible
from dynamo.cli.cluster.looking import one
from dynamo.cli.cluster.trouble import ClusterError, RefusedError
from dynamo.operator.kinds import PODS
from dynamo.operator.observe import label
from dynamo.operator.resources import naming

_MOST_WAITING: Final = 10_000
_LOOK_EVERY: Final = 2.0


class Wanted(NamedTuple):
    """What the command line said."""

    name: str
    since: datetime | None
    tail: int | None
    previous: bool


class Line(NamedTuple):
    """One line of one pod."""

    at: str
    pod: str
    text: str


Print = Callable[[Line, bool], None]


def parse_line(pod: str, raw: bytes) -> Line:
    """`TIME TEXT`, as the API server gives it when it is asked for times."""
    at, _, text = raw.decode(errors="replace").rstrip("\r\n").partition(" ")
    return Line(at, pod, text)


def split_name(name: str) -> tuple[str, str]:
    """Pipeline and component (empty: all)."""
    pipeline, _, component = name.partition("/")
    return pipeline, component


def short_name(pipeline: str, pod: Live) -> str:
    """A pod's name without what all have in common."""
    return str(pod["metadata"]["name"]).removeprefix(f"{pipeline}-")


def pods_of(cluster: Cluster, name: str) -> list[Live]:
    """Of a pipeline, of `pipeline/component`, or the pod of this name; raises where there is no such thing."""
    pipeline, component = split_name(name)
    found = _labelled(cluster, pipeline, component)
    if found:
        return found
    pod = None if component else cluster.find(PODS.path(cluster.namespace, name))
    if pod is not None:
        return [pod]
    one(cluster, cluster.namespace, pipeline)
    known = sorted({label(p, naming.COMPONENT) for p in _labelled(cluster, pipeline, "")})
    if component and known:
        raise ClusterError(f"{pipeline} has no pods of {component!r}: it has {', '.join(known)}")
    raise ClusterError(f"{cluster.namespace}/{pipeline} has no pods: see dynamo status {pipeline}")


def _labelled(cluster: Cluster, pipeline: str, component: str) -> list[Live]:
    labels = {naming.PIPELINE: pipeline} | ({naming.COMPONENT: component} if component else {})
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return cluster.items(PODS, cluster.namespace, labelSelector=selector)


def print_logs(cluster: Cluster, wanted: Wanted, show: Print, *, follow: bool) -> None:
    """What there is, by time; then what comes, until Ctrl-C or until no pod is left."""
    with interruptible():
        pods = pods_of(cluster, wanted.name)
        if follow:
            _Following(cluster, wanted, show).run(pods)
            return
        lines = heapq.merge(*(_past(cluster, wanted, pod) for pod in pods))
        for line in lines if wanted.tail is None else deque(lines, maxlen=wanted.tail):
            show(line, len(pods) > 1)


def query(wanted: Wanted, pod: Live, *, follow: bool) -> dict[str, str]:
    """As the API server wants it."""
    found = {"timestamps": "true", "container": str(pod["spec"]["containers"][0]["name"])}
    if follow:
        found["follow"] = "true"
    if wanted.tail is not None:
        found["tailLines"] = str(wanted.tail)
    if wanted.since is not None:
        found["sinceTime"] = wanted.since.strftime("%Y-%m-%dT%H:%M:%SZ")
    if wanted.previous:
        found["previous"] = "true"
    return found


def _past(cluster: Cluster, wanted: Wanted, pod: Live) -> list[Line]:
    try:
        raw = cluster.raw("GET", _path(cluster, pod), query(wanted, pod, follow=False))
    except RefusedError as refused:
        return _nothing_yet(pod, refused)
    return [parse_line(short_name(split_name(wanted.name)[0], pod), line) for line in raw.splitlines()]


def _nothing_yet(pod: Live, refused: RefusedError) -> list[Line]:
    """A container that never started has no log; that is said, and the other pods' are shown."""
    if refused.status != 400:
        raise refused
    print(f"{pod['metadata']['name']}: {refused.said}", file=sys.stderr)
    return []


def _path(cluster: Cluster, pod: Live) -> str:
    return PODS.path(cluster.namespace, pod["metadata"]["name"], "log")


class _Following:
    """A thread for each pod, one queue, and a look for new pods now and then."""

    def __init__(self, cluster: Cluster, wanted: Wanted, show: Print) -> None:
        self._cluster, self._wanted, self._show = cluster, wanted, show
        self._lines: queue.Queue[Line] = queue.Queue(_MOST_WAITING)
        self._threads: dict[str, threading.Thread] = {}

    def run(self, pods: Sequence[Live]) -> None:
        """Until nobody writes any more."""
        single = len(pods) == 1
        self._attend(pods)
        while self._threads:
            try:
                self._show(self._lines.get(timeout=_LOOK_EVERY), not single or len(self._threads) > 1)
            except queue.Empty:
                self._attend(self._now())
                if not any(thread.is_alive() for thread in self._threads.values()) and self._lines.empty():
                    return

    def _now(self) -> Iterable[Live]:
        pipeline, component = split_name(self._wanted.name)
        return _labelled(self._cluster, pipeline, component)

    def _attend(self, pods: Iterable[Live]) -> None:
        for pod in pods:
            uid = str(pod["metadata"]["uid"])
            begun = (pod.get("status") or {}).get("phase") not in (None, "Pending")
            if begun and uid not in self._threads:
                thread = threading.Thread(target=self._read, args=(pod,), name="pod's log", daemon=True)
                self._threads[uid] = thread
                thread.start()

    def _read(self, pod: Live) -> None:
        name = short_name(split_name(self._wanted.name)[0], pod)
        asked = query(self._wanted, pod, follow=True)
        try:
            with self._cluster.open("GET", _path(self._cluster, pod), asked, read_seconds=None) as response:
                for raw in _lines_of(response):
                    self._lines.put(parse_line(name, raw))
        except ClusterError as error:
            print(f"{pod['metadata']['name']}: {error.message}", file=sys.stderr)


def _lines_of(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(65536, decode_content=True):
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest
