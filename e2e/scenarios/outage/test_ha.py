"""`ha: true`: three etcd members, three NATS servers and two operators, each killed in turn under streaming traffic."""

from __future__ import annotations

import time

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import operator_down
from e2e.cluster.releases import RELEASE, install
from e2e.namespace import namespace_nats
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, is_ready
from e2e.traffic.busy import NAME, Load, Note, load, mocker, serve
from e2e.traffic.traffic import traffic

from dynamo.operator.manifests import nats

HA = ("--set", "ha=true", "--timeout=400s")
BACK_SECONDS = 180
SETTLE_SECONDS = 6.0
"""Of traffic with all servers, before the next one is killed: what the kill did shows in streams of a second."""
GAP_SECONDS = 2.0
"""Between two pieces of any stream."""
FRONTEND: Object = {"replicas": 2, "migrationLimit": 3, "workerWaitTimeoutSeconds": 30}
PARTS = {"etcd": 3, "operator": 2}


@pytest.mark.alone
@pytest.mark.quiet
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_each_pod_is_killed_in_turn(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """No request fails; a live pipeline gets there from one server each, and back."""
    with operator_down(platform):
        install(namespace)
        serve(namespace, mocker(replicas=2), frontend=FRONTEND)
        with traffic(namespace, NAME) as seen:
            install(namespace, *HA)
            wait_for("three NATS servers are Ready", lambda: _servers(namespace, 3), BACK_SECONDS)
            namespace.wait_ready(NAME, BACK_SECONDS)
        record_property("streams while one server of each became three", str(seen))
        for title, selector, count in _killed(namespace):
            with load(namespace) as both:
                for pod in _pods(namespace, selector):
                    _kill(namespace, pod, selector, count)
            record_property(f"{title} killed in turn", str(both.seen))
            _judge(both)
        with load(namespace) as both:
            _renew(namespace)
        record_property("the certificate of etcd's members renewed", str(both.seen))
        _judge(both)
        install(namespace, "--set", "ha=false")
        wait_for("one NATS server is left", lambda: _servers(namespace, 1), BACK_SECONDS)
        namespace.wait_ready(NAME, BACK_SECONDS)
        with load(namespace) as both:
            time.sleep(SETTLE_SECONDS)
        _judge(both)
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def _renew(namespace: Namespace) -> None:
    """Have another certificate for etcd's members, as the documents say: all three start anew with it."""
    secret = f"{RELEASE}-dynamo-platform-etcd-ha-peers"
    before = namespace.get("v1/Secret", secret)
    assert before is not None
    namespace.kubectl("delete", "secret", secret)

    def made() -> bool:
        now = namespace.get("v1/Secret", secret)
        return now is not None and now["data"] != before["data"]

    wait_for("the operator has made another", made, BACK_SECONDS)
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=etcd"
    old = {pod["metadata"]["uid"] for pod in _pods(namespace, selector)}
    namespace.kubectl("delete", "pod", "-l", selector, seconds=BACK_SECONDS)

    def back() -> bool:
        pods = [pod for pod in _pods(namespace, selector) if is_ready(pod)]
        return len(pods) == PARTS["etcd"] and not old & {pod["metadata"]["uid"] for pod in pods}

    wait_for("all members are back", back, BACK_SECONDS)
    time.sleep(SETTLE_SECONDS)


def _servers(namespace: Namespace, count: int) -> bool:
    """Tell whether so many NATS servers are there, all of the newest revision."""
    deployment = namespace.get("apps/v1/Deployment", nats.NAME) or {}
    status = deployment.get("status", {})
    return [status.get(f"{what}eplicas") for what in ("updatedR", "availableR", "r")] == [count] * 3


def _judge(both: Load) -> None:
    assert both.seen.failures == []
    assert both.seen.complete == both.seen.sent > 0
    assert both.seen.longest_gap < GAP_SECONDS
    assert both.truth.lies == []


def _killed(namespace: Namespace) -> list[tuple[str, str, int]]:
    instance = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component="
    platform = [(part, f"{instance}{part}", count) for part, count in PARTS.items()]
    workers = f"dynamo.dev/pipeline={NAME},dynamo.dev/component=worker"
    return [("NATS", namespace_nats.SELECTOR, 3), *platform, ("workers", workers, 2)]


def _kill(namespace: Namespace, pod: Object, selector: str, count: int) -> None:
    """End a pod without any time to say goodbye, and wait until there are as many as before."""
    killed = pod["metadata"]["uid"]
    namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force", seconds=BACK_SECONDS)

    def whole() -> bool:
        pods = _pods(namespace, selector)
        others = [each for each in pods if each["metadata"]["uid"] != killed and is_ready(each)]
        return len(others) == count

    wait_for(f"{count} are Ready", whole, BACK_SECONDS)
    time.sleep(SETTLE_SECONDS)


def _pods(namespace: Namespace, selector: str) -> list[Object]:
    return [pod for pod in namespace.list("v1/Pod", selector) if not pod["metadata"].get("deletionTimestamp")]
