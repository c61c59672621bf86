"""Pipelines that are asked all the time: what a scenario under traffic serves, watches and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, is_ready, pipeline, workers
from e2e.traffic.traffic import RATE, Seen, traffic
from e2e.traffic.watching import PATIENCE_SECONDS, Truth, watched

NAME = "busy"
ROLL_SECONDS = 300
SHOWN = 10
SLOW: Object = {"speedup_ratio": 0.25}
"""Streams of about a second, so that every change meets some of them."""

Note = Callable[[str, object], None]


class Load(NamedTuple):
    """What users saw, and what the status said meanwhile."""

    seen: Seen
    truth: Truth

    def judge(self, note: Note, *, with_operator: bool = True) -> None:
        """Every stream was complete, and Ready never promised what the endpoint didn't keep.

        Nor more workers than frontends had, as long as there is an operator to say so.
        """
        note("streams", str(self.seen))
        for failure in self.seen.failures[:SHOWN]:  # what pytest shows of an assertion is cut
            note("failed", failure)
        note("status", str(self.truth))
        assert self.seen.failures == []
        assert self.seen.complete == self.seen.sent > 0
        assert self.truth.lies == []
        assert not with_operator or self.truth.lacks == []


def mocker(**component: Any) -> Object:
    """A component whose streams last long enough."""
    return {"engine": "mocker", "engineArgs": SLOW, **component}


def busy(*components: Object, frontend: Object | None = None, **spec: Any) -> Object:
    """The pipeline, with a Service that every node leads to."""
    return pipeline(NAME, *components, frontend={"service": {"type": "NodePort"}, **(frontend or {})}, **spec)


def serve(namespace: Namespace, *components: Object, frontend: Object | None = None, **spec: Any) -> None:
    """Until it is Ready."""
    namespace.apply(busy(*components, frontend=frontend, **spec))
    namespace.wait_ready(NAME)


@contextmanager
def load(namespace: Namespace, rate: float = RATE, patience: float = PATIENCE_SECONDS) -> Iterator[Load]:
    """Streams, and a look at the status five times a second, while the block runs."""
    with traffic(namespace, NAME, rate=rate) as seen, watched(namespace, NAME, patience=patience) as truth:
        yield Load(seen, truth)


def uids(namespace: Namespace, component: str = "worker") -> set[str]:
    """Of a component's pods that aren't about to go."""
    return {pod["metadata"]["uid"] for pod in workers(namespace, NAME, component)}


def wait_rolled(namespace: Namespace, before: set[str], component: str = "worker") -> None:
    """Until none of the pods of before is left, and the pipeline is Ready."""
    wait_for("no old pod is left", lambda: not uids(namespace, component) & before, ROLL_SECONDS)
    namespace.wait_ready(NAME, ROLL_SECONDS)
    assert all(map(is_ready, workers(namespace, NAME, component)))
