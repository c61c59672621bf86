"""Groups of pods that are one worker: whole groups count, serve, come and go; the mocker runs over their nodes."""

from __future__ import annotations

import time

import httpx
from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, is_ready, pipeline, say, workers
from e2e.traffic.busy import NAME as BUSY
from e2e.traffic.busy import ROLL_SECONDS, Note, load, mocker, serve
from e2e.traffic.traffic import outside

NAME = "grouped"
STEP_SECONDS = 240
RANK, GROUP = "apps.kubernetes.io/pod-index", "dynamo.dev/group"
GROUPED: Object = {"nodes": 2, "tensorParallelSize": 2}
LEADER, FOLLOWER = ("1", "0"), ("1", "1")
"""Of the second group: its number, the pod's rank."""


def test_group(namespace: Namespace) -> None:
    """Two groups of two pods with a GPU each become two workers; one is scaled away without touching the other."""
    namespace.apply(pipeline(NAME, {"engine": "mocker", "accelerator": {}, **GROUPED}, replicas=2))
    wait_for("two workers", lambda: _counted(namespace, NAME) == "2/2", STEP_SECONDS)
    pods = workers(namespace, NAME)
    assert sorted(_place(pod) for pod in pods) == [(group, rank) for group in "01" for rank in "01"]
    assert all(is_ready(pod) for pod in pods)
    for pod in pods:
        assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    kept = {pod["metadata"]["uid"] for pod in pods if _place(pod)[0] == "0"}
    with asking(namespace, NAME) as client:
        assert say(client, NAME)
        namespace.kubectl("scale", f"dp/{NAME}", "--replicas=1")
        wait_for("one group is left", lambda: len(workers(namespace, NAME)) == len(kept), STEP_SECONDS)
        assert {pod["metadata"]["uid"] for pod in workers(namespace, NAME)} == kept
        wait_for("it is counted", lambda: _counted(namespace, NAME) == "1/1", STEP_SECONDS)
        assert say(client, NAME)
    services = namespace.list("v1/Service", f"dynamo.dev/pipeline={NAME},{GROUP}")
    assert [service["metadata"]["labels"][GROUP] for service in services] == ["0"]


def test_a_group_with_a_pod_missing_is_no_worker(namespace: Namespace, record_property: Note) -> None:
    """A follower's pod goes under traffic: its group leaves routing, no stream breaks, and it serves when it is whole.

    Its leader lives on; and where a leader's pod goes at once, its follower lives on and joins the next.
    """
    serve(namespace, mocker(replicas=2, **GROUPED))
    leader, follower = _pod(namespace, LEADER), _pod(namespace, FOLLOWER)
    with load(namespace) as both:
        began = time.monotonic()
        namespace.kubectl("delete", "pod", follower["metadata"]["name"], "--wait=false")
        wait_for("it is out of routing", lambda: _routed(namespace) == 1, STEP_SECONDS)
        record_property("seconds until a group without its follower is out of routing", _since(began))
        wait_for("the status misses it", lambda: _counted(namespace, BUSY) == "1/2", STEP_SECONDS)
        wait_for("it is routed to again", lambda: _routed(namespace) == 2, STEP_SECONDS)
        namespace.wait_ready(BUSY, ROLL_SECONDS)
        record_property("seconds until the group is whole and counted", _since(began))
    both.judge(record_property)
    followed = _pod(namespace, FOLLOWER)
    assert followed["metadata"]["uid"] != follower["metadata"]["uid"]
    assert _life(_pod(namespace, LEADER)) == (leader["metadata"]["uid"], 0)

    namespace.kubectl("delete", "pod", leader["metadata"]["name"], "--now")
    wait_for("another leader is ready", lambda: _is_another(_pod(namespace, LEADER), leader), STEP_SECONDS)
    wait_for("both groups are routed to", lambda: _routed(namespace) == 2, STEP_SECONDS)
    namespace.wait_ready(BUSY, ROLL_SECONDS)
    assert _life(_pod(namespace, FOLLOWER)) == (followed["metadata"]["uid"], 0)


def _counted(namespace: Namespace, name: str) -> str:
    return str(namespace.pipeline(name).get("status", {}).get("workers", ""))


def _routed(namespace: Namespace) -> int:
    """Workers that a frontend of the pipeline under traffic routes to."""
    models = httpx.get(f"{outside(namespace, f'{BUSY}-frontend')}/health", timeout=5).json()["models"]
    return sum(int(model["instances"]) for model in models.values())


def _pod(namespace: Namespace, place: tuple[str, str]) -> Object:
    """The one at this place that isn't about to go."""
    return wait_for(
        f"the pod of group {place[0]}, rank {place[1]}",
        lambda: next((pod for pod in workers(namespace, BUSY) if _place(pod) == place), None),
        STEP_SECONDS,
    )


def _place(pod: Object) -> tuple[str, str]:
    labels = pod["metadata"]["labels"]
    return labels[GROUP], labels[RANK]


def _life(pod: Object) -> tuple[str, int]:
    """Which pod it is, and how often its containers were started anew."""
    statuses = pod["status"].get("containerStatuses", [])
    return pod["metadata"]["uid"], sum(status["restartCount"] for status in statuses)


def _is_another(pod: Object, than: Object) -> bool:
    return bool(pod["metadata"]["uid"] != than["metadata"]["uid"] and is_ready(pod))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)
