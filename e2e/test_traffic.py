"""Rollouts under streaming traffic, three in a row: no request fails, no stream breaks, every token is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.cluster import wait_for
from e2e.namespace import Namespace
from e2e.pipelines import Object, is_ready, pipeline, workers
from e2e.traffic import Seen, traffic

NAME = "busy"
ROLL_SECONDS = 300
TIMES = 3
SLOW: Object = {"speedup_ratio": 0.25}
"""Streams of about a second, so that every change meets some of them."""

Note = Callable[[str, object], None]


@pytest.mark.alone
@pytest.mark.parametrize("replicas", [pytest.param(3, marks=pytest.mark.full), 1])
def test_workers_roll(namespace: Namespace, record_property: Note, replicas: int) -> None:
    """Three workers one after the other; a single one by surge."""
    worker = {"engine": "mocker", "replicas": replicas, "engineArgs": SLOW}
    _serve(namespace, worker)
    with traffic(namespace, NAME) as seen:
        for turn in range(TIMES):
            before = _uids(namespace, "worker")
            namespace.apply(_pipeline({**worker, "env": [{"name": "TURN", "value": str(turn)}]}))
            _wait_rolled(namespace, "worker", before)
    _judge(seen, record_property)


@pytest.mark.alone
@pytest.mark.full
def test_frontends_roll(namespace: Namespace, record_property: Note) -> None:
    """Two frontends, by `spec.restart`, which rolls the workers with them."""
    worker = {"engine": "mocker", "replicas": 2, "engineArgs": SLOW}
    _serve(namespace, worker, replicas=2)
    with traffic(namespace, NAME) as seen:
        for turn in range(TIMES):
            before = _uids(namespace, "frontend")
            namespace.apply(_pipeline(worker, replicas=2, restart=str(turn)))
            _wait_rolled(namespace, "frontend", before)
    _judge(seen, record_property)


def _pipeline(worker: Object, replicas: int = 1, **spec: object) -> Object:
    return pipeline(NAME, worker, frontend={"replicas": replicas, "service": {"type": "NodePort"}}, **spec)


def _serve(namespace: Namespace, worker: Object, replicas: int = 1) -> None:
    namespace.apply(_pipeline(worker, replicas))
    namespace.wait_ready(NAME)


def _uids(namespace: Namespace, component: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in workers(namespace, NAME, component)}


def _wait_rolled(namespace: Namespace, component: str, before: set[str]) -> None:
    wait_for("no old pod is left", lambda: not _uids(namespace, component) & before, ROLL_SECONDS)
    namespace.wait_ready(NAME, ROLL_SECONDS)
    assert all(map(is_ready, workers(namespace, NAME, component)))


def _judge(seen: Seen, note: Note) -> None:
    note("streams", str(seen))
    assert seen.failures == []
    assert seen.complete == seen.sent > 0
