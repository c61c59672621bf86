"""The operator is away for minutes while traffic flows: the data plane never needs it."""

from __future__ import annotations

import time

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import operator_down, wait_for_leader
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import is_ready, workers
from e2e.traffic.busy import NAME, Note, busy, load, mocker, serve

AWAY_SECONDS = 600
START_SECONDS = 120


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_operator_down_for_ten_minutes(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """A worker that is deleted meanwhile comes back without it; an edit waits, and is carried out by the next one."""
    frontend = {"replicas": 2}
    serve(namespace, mocker(replicas=3), frontend=frontend)
    with load(namespace) as both:
        with operator_down(platform):
            began = time.monotonic()
            first = workers(namespace, NAME)[0]["metadata"]["name"]
            namespace.kubectl("delete", "pod", first, "--wait=true")
            wait_for("three workers again", lambda: _all_ready(namespace, 3), START_SECONDS)
            namespace.apply(busy(mocker(replicas=4), frontend=frontend))
            time.sleep(max(0.0, began + AWAY_SECONDS - time.monotonic()))
        wait_for_leader(platform)
        namespace.wait_ready(NAME)
        assert _all_ready(namespace, 4)
    both.judge(record_property, with_operator=False)


def _all_ready(namespace: Namespace, count: int) -> bool:
    found = workers(namespace, NAME)
    return len(found) == count and all(map(is_ready, found))
