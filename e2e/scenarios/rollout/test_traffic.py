"""Rollouts under streaming traffic, three in a row: no request fails, no stream breaks, every token is there."""

from __future__ import annotations

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector, wait_for_leader
from e2e.namespace.namespace import Namespace
from e2e.traffic.busy import ROLL_SECONDS, Note, busy, load, mocker, serve, uids, wait_rolled

TIMES = 3
HOLD_SECONDS = 60


@pytest.mark.alone
@pytest.mark.parametrize("replicas", [pytest.param(3, marks=pytest.mark.full), 1])
def test_workers_roll(namespace: Namespace, record_property: Note, replicas: int) -> None:
    """Three workers one after the other; a single one by surge."""
    worker = mocker(replicas=replicas)
    serve(namespace, worker)
    with load(namespace) as both:
        for turn in range(TIMES):
            before = uids(namespace)
            namespace.apply(busy({**worker, "env": [{"name": "TURN", "value": str(turn)}]}))
            wait_rolled(namespace, before)
    both.judge(record_property)


@pytest.mark.alone
@pytest.mark.full
def test_frontends_roll(namespace: Namespace, record_property: Note) -> None:
    """Two frontends, by `spec.restart`, which rolls the workers with them."""
    worker, frontend = mocker(replicas=2), {"replicas": 2}
    serve(namespace, worker, frontend=frontend)
    with load(namespace) as both:
        for turn in range(TIMES):
            before = uids(namespace, "frontend")
            namespace.apply(busy(worker, frontend=frontend, restart=str(turn)))
            wait_rolled(namespace, before, "frontend")
    both.judge(record_property)


@pytest.mark.alone
def test_a_single_worker_is_recreated(namespace: Namespace, record_property: Note) -> None:
    """By `Recreate`, where there is no room for two: requests wait at the frontend until the new one is there."""
    worker = mocker(replicas=1, rollout={"strategy": "Recreate"})
    frontend = {"workerWaitTimeoutSeconds": HOLD_SECONDS}
    serve(namespace, worker, frontend=frontend)
    with load(namespace, patience=HOLD_SECONDS) as both:
        before = uids(namespace)
        namespace.apply(busy({**worker, "env": [{"name": "TURN", "value": "next"}]}, frontend=frontend))
        wait_rolled(namespace, before)
    both.judge(record_property)


@pytest.mark.alone
def test_the_operator_is_killed_in_mid_rollout(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """With no time to give anything back: users see nothing of it, and the next operator ends the rollout."""
    worker = mocker(replicas=3)
    serve(namespace, worker)
    here, selector = home(platform), operator_selector(platform)
    with load(namespace) as both:
        before = uids(namespace)
        namespace.apply(busy({**worker, "env": [{"name": "TURN", "value": "next"}]}))
        wait_for("the rollout began", lambda: uids(namespace) - before, ROLL_SECONDS)
        here.kubectl("delete", "pod", "-l", selector, "--grace-period=0", "--force")
        wait_rolled(namespace, before)
    wait_for_leader(platform)
    both.judge(record_property)
