"""etcd and NATS of the platform are restarted under streaming traffic."""

from __future__ import annotations

import time

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home
from e2e.namespace import namespace_nats
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import is_ready
from e2e.traffic.busy import NAME, Note, load, mocker, serve, uids, wait_rolled

FRONTEND = {"replicas": 2, "migrationLimit": 3, "workerWaitTimeoutSeconds": 30}
BACK_SECONDS = 180
SETTLE_SECONDS = 10.0


@pytest.mark.alone
def test_etcd_is_restarted(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """Nobody notices: who is there is known, and workers register again."""
    serve(namespace, mocker(replicas=2), frontend=FRONTEND)
    with load(namespace) as both:
        restart(home(platform), f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component=etcd")
        time.sleep(SETTLE_SECONDS)
    both.judge(record_property)


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(900)
def test_etcd_loses_everything(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """Nothing has to be restored: users are made anew, processes register again, and no stream ends meanwhile.

    Whoever starts afterwards gets in as well.
    """
    serve(namespace, mocker(replicas=2), frontend=FRONTEND)
    with load(namespace) as both:
        began = time.monotonic()
        without_data(home(platform), f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component=etcd")
        record_property("seconds until an empty etcd was there", round(time.monotonic() - began, 1))
        time.sleep(SETTLE_SECONDS)
        namespace.wait_ready(NAME)
        record_property("seconds until the pipeline was Ready with it", round(time.monotonic() - began, 1))
        before = uids(namespace)
        namespace.kubectl("delete", "pod", "-l", f"dynamo.dev/pipeline={NAME},dynamo.dev/component=worker")
        wait_rolled(namespace, before)
    both.judge(record_property)


@pytest.mark.alone
def test_nats_is_restarted(namespace: Namespace, record_property: Note) -> None:
    """What was on its way goes on elsewhere, or ends with an error that says so; nothing ends short without one.

    Once it is back, everything is as before, without a pod that was restarted.
    """
    serve(namespace, mocker(replicas=2), frontend=FRONTEND)
    before = restarts(namespace)
    with load(namespace) as both:
        restart(namespace, namespace_nats.SELECTOR)
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


def without_data(here: Namespace, selector: str) -> None:
    """End etcd, delete its claim, and start it again."""
    (found,) = here.list("apps/v1/StatefulSet", selector)
    name = f"statefulset/{found['metadata']['name']}"
    (pod,) = here.list("v1/Pod", selector)
    volumes = [volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"]["volumes"]]
    claims = [claim for claim in volumes if claim]
    assert claims, "its data isn't on a claim"
    here.kubectl("scale", name, "--replicas=0")
    try:
        wait_for("etcd is gone", lambda: not here.list("v1/Pod", selector), BACK_SECONDS)
        here.kubectl("delete", "pvc", *claims, "--wait=true", seconds=BACK_SECONDS)
    finally:
        here.kubectl("scale", name, "--replicas=1")
    here.kubectl("rollout", "status", name, f"--timeout={BACK_SECONDS}s", seconds=BACK_SECONDS)


def restart(here: Namespace, selector: str) -> None:
    """Delete the only pod of a server, and wait until another one is Ready."""
    (old,) = here.list("v1/Pod", selector)
    here.kubectl("delete", "pod", old["metadata"]["name"], "--wait=true", seconds=BACK_SECONDS)

    def back() -> bool:
        return any(pod["metadata"]["uid"] != old["metadata"]["uid"] and is_ready(pod)
                   for pod in here.list("v1/Pod", selector))  # fmt: skip

    wait_for("the server is back", back, BACK_SECONDS)


def restarts(namespace: Namespace) -> dict[str, int]:
    """Count restarts of the pipeline's pods, by name."""
    return {
        pod["metadata"]["name"]: sum(status["restartCount"] for status in pod["status"].get("containerStatuses", []))
        for pod in namespace.list("v1/Pod", f"dynamo.dev/pipeline={NAME}")
    }
