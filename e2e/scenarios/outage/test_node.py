"""A node of kind stops without a word, under streaming traffic, and comes back."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, answers, asking, is_ready, workers
from e2e.traffic.busy import NAME, ROLL_SECONDS, Load, Note, load, mocker, serve

DOCKER_SECONDS = 30
NOTICED_SECONDS = 30
"""Frontends leave its workers within seconds, and tell the operator; Kubernetes takes 40 to 50 s."""
STEADY_SECONDS = 15.0
FREE_SECONDS = 120
"""A node that was stopped before keeps its taint for some seconds."""
AWAY_SECONDS = 20.0
GRACE_SECONDS = 5
REPLACED_SECONDS = 240
"""The tolerance of 10 s, the grace and 20 s, a minute beyond, a look, and a start."""
NATS_REPLACED_SECONDS = 120
"""Kubernetes takes 40 to 50 s to mark the node, NATS leaves it 10 s later and starts, and the workers find it again."""
HOSTNAME = "kubernetes.io/hostname"


@pytest.mark.alone
@pytest.mark.quiet
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_node_stops(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """Streams of its workers go on elsewhere; the status says which pod is lost; back again, all is well."""
    node, other = victim_and_other(platform)
    frontend = {"replicas": 2, "migrationLimit": 3, "podTemplate": on(other)}
    serve(
        namespace,
        mocker(name="stays", replicas=2, podTemplate=on(other)),
        mocker(name="lost", replicas=1, podTemplate=on(node)),
        frontend=frontend,
    )
    without_nats(namespace, node)
    with load(namespace) as both:
        _stopped(namespace, node, both, record_property)
        namespace.wait_ready(NAME, ROLL_SECONDS)
    both.judge(record_property)


@pytest.mark.alone
@pytest.mark.quiet
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_workers_of_a_stopped_node_are_replaced(
    namespace: Namespace, platform: Platform, record_property: Note
) -> None:
    """Kubernetes gives their names to nobody else, so that another number takes each one's place, on another node.

    Back again, the node ends its pods, and there are as many as before.
    """
    node, other = victim_and_other(platform)
    frontend = {"replicas": 2, "migrationLimit": 3, "podTemplate": on(other)}
    serve(
        namespace,
        mocker(name="stays", replicas=2, podTemplate=on(other)),
        mocker(name="lost", replicas=1, podTemplate=rather_on(node)),
        frontend=frontend,
        gracefulShutdownTimeoutSeconds=GRACE_SECONDS,
    )
    without_nats(namespace, node)
    (before,) = workers(namespace, NAME, "lost")
    assert before["spec"]["nodeName"] == node
    with load(namespace) as both:
        with paused(node):
            wait_for("the status says so", lambda: _unready(namespace), NOTICED_SECONDS)
            began = time.monotonic()
            namespace.wait_ready(NAME, REPLACED_SECONDS)
            record_property("seconds from NotReady until it is replaced", round(time.monotonic() - began, 1))
            (now,) = workers(namespace, NAME, "lost")
            assert now["spec"]["nodeName"] != node
            assert now["metadata"]["name"].endswith("-1")
        wait_for("one is left, of the first number", lambda: _names(namespace) == [before["metadata"]["name"]],
                 ROLL_SECONDS)  # fmt: skip
        namespace.wait_ready(NAME, ROLL_SECONDS)
    both.judge(record_property)


@pytest.mark.alone
@pytest.mark.quiet
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_nats_leaves_a_stopped_node(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """The namespace's NATS starts on another node after a minute, and the pipeline answers while its node is away."""
    node, other = victim_and_other(platform)
    where = on(other)
    serve(
        namespace,
        mocker(name="stays", replicas=1, podTemplate=where),
        frontend={"replicas": 1, "podTemplate": where},
    )
    without_nats(namespace, other)
    (before,) = _nats(namespace)
    assert before["spec"]["nodeName"] == node
    with paused(node):
        began = time.monotonic()
        new = wait_for("NATS is Ready on another node", lambda: _replaced(namespace, before), NATS_REPLACED_SECONDS)
        record_property("seconds until NATS has left a stopped node", round(time.monotonic() - began, 1))
        assert new["spec"]["nodeName"] != node
        namespace.wait_ready(NAME, NATS_REPLACED_SECONDS)
        with asking(namespace, NAME) as client:
            answers(client, NAME)
        record_property("seconds until the pipeline answers again", round(time.monotonic() - began, 1))
    namespace.wait_ready(NAME, ROLL_SECONDS)


def _nats(namespace: Namespace) -> list[Object]:
    return [pod for pod in namespace.list("v1/Pod") if _part(pod) == "nats"]


def _replaced(namespace: Namespace, before: Object) -> Object | None:
    others = [pod for pod in _nats(namespace) if pod["metadata"]["uid"] != before["metadata"]["uid"] and is_ready(pod)]
    return others[0] if others else None


def _names(namespace: Namespace) -> list[str]:
    return [pod["metadata"]["name"] for pod in workers(namespace, NAME, "lost") if is_ready(pod)]


def rather_on(node: str) -> Object:
    """A podTemplate that leaves a node that is lost soon, and may go elsewhere."""
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 10} for key in keys]
    return {"spec": {"affinity": {"nodeAffinity": preferred}, "tolerations": tolerated}}


def _stopped(namespace: Namespace, node: str, both: Load, note: Note) -> None:
    with paused(node):
        began = time.monotonic()
        condition = wait_for("the status says so", lambda: _unready(namespace), NOTICED_SECONDS)
        note("seconds until the status tells of a stopped node", round(time.monotonic() - began, 1))
        assert f"{NAME}-lost-" in condition["message"]
        assert namespace.condition(NAME, "FrontendReady")["status"] == "True"
        sent = both.seen.sent
        time.sleep(AWAY_SECONDS)
        assert both.seen.sent > sent


def _unready(namespace: Namespace) -> Object | None:
    found = namespace.condition(NAME)
    return found if found.get("status") == "False" else None


def on(node: str) -> Object:
    """A podTemplate that asks for a node."""
    return {"spec": {"nodeSelector": {HOSTNAME: node}}}


def victim_and_other(platform: Platform) -> tuple[str, str]:
    """A node without anything of the platform, and one with it; only kind's nodes can be stopped."""
    nodes = wait_for("there are two nodes without taints", lambda: _two_free(platform), FREE_SECONDS)
    assert _is_container(nodes[0]), "this scenario stops a node, so it needs kind, and its Docker within reach"
    here = home(platform)
    etcd = next(pod for pod in here.list("v1/Pod") if _part(pod) == "etcd")["spec"]["nodeName"]
    victim, other = next(node for node in nodes if node != etcd), etcd
    _moved_away(here, victim)
    return victim, other


def _two_free(platform: Platform) -> list[str] | None:
    nodes = [node["metadata"]["name"] for node in platform.cluster.list("v1/Node") if not node["spec"].get("taints")]
    return nodes if len(nodes) > 1 else None


def without_nats(namespace: Namespace, node: str) -> None:
    """The pipeline's NATS leaves the node: with it every worker would be lost, wherever it is.

    The status tells of that some time later, which must not be taken for what comes after.
    """
    _moved_away(namespace, node, "nats")
    _wait_steady(namespace)


def _wait_steady(namespace: Namespace) -> None:
    """Wait until the pipeline has been Ready for a while without a break."""
    began = time.monotonic()

    def steady() -> bool:
        nonlocal began
        if _unready(namespace):
            began = time.monotonic()
        return time.monotonic() - began > STEADY_SECONDS

    wait_for("the pipeline stays Ready", steady, ROLL_SECONDS)


def _moved_away(here: Namespace, node: str, part: str = "") -> None:
    """Pods leave the node, all or those of one part; etcd, whose volume is tied to one, isn't there."""
    here.cluster.kubectl("cordon", node)
    try:
        there = [pod for pod in here.list("v1/Pod") if pod["spec"].get("nodeName") == node]
        names = [pod["metadata"]["name"] for pod in there if part in ("", _part(pod))]
        if names:
            here.kubectl("delete", "pod", *names, "--wait=true", seconds=180)
        wait_for("all are Ready", lambda: all(map(is_ready, here.list("v1/Pod"))), ROLL_SECONDS)
    finally:
        here.cluster.kubectl("uncordon", node)


def _part(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


@contextmanager
def paused(node: str) -> Iterator[None]:
    """Nothing on the node runs inside, and nobody is told."""
    _docker("pause", node)
    try:
        yield
    finally:
        _docker("unpause", node)


def _is_container(node: str) -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "container", "inspect", node]
    return subprocess.run(command, capture_output=True, timeout=DOCKER_SECONDS, check=False).returncode == 0


def _docker(*words: str) -> None:
    subprocess.run(["docker", *words], capture_output=True, timeout=DOCKER_SECONDS, check=True)
