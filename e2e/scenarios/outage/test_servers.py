"""etcd and NATS of the platform are restarted under streaming traffic."""

from __future__ import annotations

import time

import pytest
from e2e.busy import NAME, Note, load, mocker, serve
from e2e.cluster import wait_for
from e2e.installation import Platform
from e2e.namespace import Namespace
from e2e.outage import home
from e2e.pipelines import is_ready

FRONTEND = {"replicas": 2, "migrationLimit": 3, "holdSeconds": 30}
BACK_SECONDS = 180
SETTLE_SECONDS = 10.0


@pytest.mark.alone
def test_etcd_is_restarted(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """Nobody notices: who is there is known, and workers register again."""
    serve(namespace, mocker(replicas=2), frontend=FRONTEND)
    with load(namespace) as both:
        restart(platform, "etcd")
        time.sleep(SETTLE_SECONDS)
    both.judge(record_property)


@pytest.mark.alone
def test_nats_is_restarted(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """What was on its way goes on elsewhere, or ends with an error that says so; nothing ends short without one.

    Once it is back, everything is as before, without a pod that was restarted.
    """
    serve(namespace, mocker(replicas=2), frontend=FRONTEND)
    before = restarts(namespace)
    with load(namespace) as both:
        restart(platform, "nats")
        time.sleep(SETTLE_SECONDS)
    record_property("streams while NATS was restarted", str(both.seen))
    record_property("status while NATS was restarted", str(both.truth))
    assert [failure for failure in both.seen.failures if "ended with" in failure] == []
    assert both.truth.lies == both.truth.lacks == []
    namespace.wait_ready(NAME)
    with load(namespace) as both:
        time.sleep(SETTLE_SECONDS)
    both.judge(record_property)
    assert restarts(namespace) == before


def restart(platform: Platform, part: str) -> None:
    """Its pod is deleted, and another one is Ready."""
    here, selector = home(platform), f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component={part}"
    (old,) = here.list("v1/Pod", selector)
    here.kubectl("delete", "pod", old["metadata"]["name"], "--wait=true", seconds=BACK_SECONDS)

    def back() -> bool:
        return any(pod["metadata"]["uid"] != old["metadata"]["uid"] and is_ready(pod)
                   for pod in here.list("v1/Pod", selector))  # fmt: skip

    wait_for(f"{part} is back", back, BACK_SECONDS)


def restarts(namespace: Namespace) -> dict[str, int]:
    """By pod."""
    return {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
        for pod in namespace.list("v1/Pod")
    }
