"""The store: what it takes, what is news, and that what is old says nothing."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dynamo.operator.cluster.object_store import ObjectStore, trimmed
from dynamo.operator.cluster.observe import is_ready, why
from dynamo.operator.kube.resources import CHILDREN, PODS, Key, resource_of
from dynamo.operator.manifests import naming

SETS, CONFIGS = resource_of("StatefulSet"), resource_of("ConfigMap")
KEY, OTHER = Key("serving", "llama"), Key("serving", "other")


def child(name: str = "x", version: int = 1, owner: str | None = "llama", **more: Any) -> dict[str, Any]:
    labels = {naming.PIPELINE: owner} if owner else {}
    return {
        "metadata": {"namespace": "serving", "name": name, "resourceVersion": str(version), "labels": labels}
    } | more


def opened() -> ObjectStore:
    store = ObjectStore()
    for kind in (*CHILDREN, PODS):
        store.live(kind, None, True)
    return store


def names(store: ObjectStore, key: Key = KEY) -> list[str]:
    return [o["metadata"]["name"] for o in store.of(SETS, key) or []]


def test_news_is_what_a_decision_reads() -> None:
    """A status that nobody reads, or managed fields: no look for that."""
    store = opened()
    assert store.take(SETS, child(spec={"replicas": 1})) == {KEY}
    assert store.take(SETS, child(version=2, spec={"replicas": 1}, status={"readyReplicas": 1})) == set()
    assert store.take(SETS, child(version=3, spec={"replicas": 2})) == {KEY}
    assert store.of(SETS, KEY) == [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicas": 2},
         "metadata": {"namespace": "serving", "name": "x", "labels": {naming.PIPELINE: "llama"}}}
    ]  # fmt: skip


def test_what_is_older_says_nothing() -> None:
    """Our own write is known from its answer; the events of before and of itself come later."""
    store = opened()
    store.take(SETS, child(version=5, spec={"replicas": 2}))
    assert store.take(SETS, child(version=4, spec={"replicas": 1})) == set()
    assert store.take(SETS, child(version=5, spec={"replicas": 2})) == set()
    assert store.drop(SETS, child(version=4)) == set()
    assert names(store) == ["x"]
    assert store.drop(SETS, child(version=6)) == {KEY}
    assert store.drop(SETS, child(version=6)) == set()
    assert names(store) == []


def test_a_list_ends_what_it_does_not_have() -> None:
    """But not what was written after it was made, and not what lies in other namespaces or is of other kinds."""
    store = opened()
    for name, version in (("gone", 1), ("kept", 2), ("newer", 9)):
        store.take(SETS, child(name, version))
    store.take(CONFIGS, child("gone"))
    assert store.listed(SETS, "elsewhere", [], "5") == set()
    assert store.listed(SETS, None, [("serving", "kept")], "5") == {KEY}
    assert names(store) == ["kept", "newer"]
    assert store.of(CONFIGS, KEY) != []


def test_an_object_may_change_hands() -> None:
    """A label that was edited is news for both; one without is nobody's."""
    store = opened()
    store.take(SETS, child())
    assert store.take(SETS, child(version=2, owner="other")) == {KEY, OTHER}
    assert (names(store), names(store, OTHER)) == ([], ["x"])
    assert store.take(SETS, child(version=3, owner=None)) == {OTHER}
    assert store.size() == 0


def test_only_a_live_watch_answers() -> None:
    """Of everything or of the pipeline's own namespace; else the server is asked."""
    store = ObjectStore()
    store.take(SETS, child())
    assert store.of(SETS, KEY) is None
    store.live(SETS, "elsewhere", True)
    assert store.of(SETS, KEY) is None
    store.live(SETS, "serving", True)
    assert names(store) == ["x"]
    store.live(SETS, "serving", False)
    assert store.of(SETS, KEY) is None


def test_a_pod_is_kept_without_its_spec() -> None:
    """Its conditions and containers tell why it waits."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "now"}
    container = {"name": "main", "ready": False, "imageID": "x", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    status = {"phase": "Pending", "podIP": "1", "conditions": [condition], "containerStatuses": [container]}
    kept = trimmed(PODS, child(spec={"containers": []}, status=status))
    assert "spec" not in kept
    assert kept["status"] == {
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        "containerStatuses": [{k: v for k, v in container.items() if k != "imageID"}],
    }  # fmt: skip


REASONS = st.sampled_from(["ContainerCreating", "PodInitializing", "CrashLoopBackOff", "ImagePullBackOff", ""])
ENDED = st.fixed_dictionaries(
    {"exitCode": st.integers(0, 2), "reason": REASONS}, optional={"message": st.just("oh\nno")}
)
STATES = st.one_of(
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": REASONS}, optional={"message": st.just("m")})}),
    st.just({"running": {"startedAt": "now"}}),
    st.fixed_dictionaries({"terminated": ENDED}),
)
LAST: st.SearchStrategy[dict[str, Any]] = st.one_of(st.just({}), st.fixed_dictionaries({"terminated": ENDED}))
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["c", "model", "server", "worker"]), "ready": st.booleans()},
        optional={"state": STATES, "lastState": LAST, "started": st.booleans()},
    ),
    max_size=2,
)
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled", "Initialized"]),
            "status": st.sampled_from(["True", "False"]),
        },
        optional={"reason": st.just("Unschedulable"), "message": st.just("no node")},
    ),
    max_size=3,
    unique_by=lambda c: c["type"],
)


PROBED = {"name": "server", "image": "i", "startupProbe": {"periodSeconds": 5, "failureThreshold": 3}}
CLAIM = {"name": "g", "resourceClaimTemplateName": "t"}
SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"containers": st.just([])},
    optional={
        "nodeName": st.just("n"), "initContainers": st.sampled_from([[PROBED], [{"name": "model"}]]),
        "resourceClaims": st.just([CLAIM]),
    },
)  # fmt: skip


@given(
    st.fixed_dictionaries(
        {"phase": st.sampled_from(["Pending", "Running", "Failed"])},
        optional={
            "conditions": CONDITIONS, "containerStatuses": CONTAINERS, "initContainerStatuses": CONTAINERS,
            "reason": st.just("Evicted"), "message": st.just("no room"),
        },
    ),
    SPECS,
    st.booleans(),
)  # fmt: skip
def test_what_is_left_out_of_a_pod_decides_nothing(status: dict[str, Any], spec: dict[str, Any], ends: bool) -> None:
    """Whether it serves, and why it doesn't, is the same with and without it."""
    pod = child(status=status, spec=spec)
    if ends:
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T00:00:00Z"
    kept = trimmed(PODS, pod)
    assert (is_ready(kept), why(kept)) == (is_ready(pod), why(pod))


def test_a_pod_on_its_way_is_no_news() -> None:
    """Created, and then ready: two reconciles; bound, pulled and started in between: none."""
    store = opened()
    running = {"type": "Initialized", "status": "True"}
    on_its_way: list[dict[str, Any]] = [
        {"phase": "Pending"},
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        {
            "phase": "Pending",
            "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}],
        },
        {"phase": "Running", "conditions": [running], "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        {"phase": "Running", "conditions": [running, {"type": "Ready", "status": "True"}]},
    ]
    news = [store.take(PODS, child(version=n, status=entry)) for n, entry in enumerate(on_its_way)]
    assert news == [{KEY}, set(), set(), set(), {KEY}]


def test_a_worker_that_answers_is_news() -> None:
    """Once: then it may be asked what it waits for, at its address; that it gets ready is told as of all pods."""
    store = opened()

    def status(started: bool, ready: bool) -> dict[str, Any]:
        container = {"name": "worker", "started": started, "state": {"running": {"startedAt": "t"}}}
        conditions = [{"type": "Ready", "status": str(ready)}]
        return {"phase": "Running", "podIP": "1", "conditions": conditions, "containerStatuses": [container]}

    states = [status(False, False), status(True, False), status(True, False), status(True, True)]
    assert [bool(store.take(PODS, child(version=n, status=state))) for n, state in enumerate(states)] == [
        True, True, False, True,
    ]  # fmt: skip
    assert trimmed(PODS, child(status=states[1]))["status"]["podIP"] == "1"
    assert "podIP" not in trimmed(PODS, child(status=states[0])).get("status", {})


def test_a_model_that_is_loaded_is_news() -> None:
    """It may take long: that it began, and that it ended, is told; of other init containers nothing."""
    store = opened()

    def pod(name: str, state: dict[str, Any]) -> dict[str, Any]:
        return {"phase": "Pending", "initContainerStatuses": [{"name": name, "state": state}]}

    states = [pod("theirs", {"running": {}}), pod("model", {"running": {}}), pod("model", {"terminated": {}})]
    assert [store.take(PODS, child(version=n, status=state)) for n, state in enumerate(states)] == [{KEY}, {KEY}, {KEY}]
    assert store.take(PODS, child("b", version=1, status={})) == {KEY}
    assert store.take(PODS, child("b", version=2, status=states[0])) == set()


def test_any_order_of_events_ends_with_the_truth() -> None:
    """Late events, own writes taken in before them, a list at the end: the newest of each object stands."""
    for seed in range(200):
        chance = random.Random(seed)
        store, truth, calls = opened(), dict[str, dict[str, Any]](), list[tuple[str, dict[str, Any]]]()
        for version in range(1, 40):
            name = chance.choice("abc")
            if name in truth and chance.random() < 0.3:
                calls.append(("drop", {**truth.pop(name), **child(name, version)}))
            else:
                truth[name] = child(name, version, data={"v": version})
                calls.append(("take", truth[name]))
                if chance.random() < 0.4:
                    store.take(CONFIGS, truth[name])
        for kind, condition in calls:
            (store.take if kind == "take" else store.drop)(CONFIGS, condition)
        store.listed(CONFIGS, None, [("serving", n) for n in truth], "40")
        condition = {o["metadata"]["name"]: o["data"] for o in store.of(CONFIGS, KEY) or []}
        assert condition == {n: o["data"] for n, o in truth.items()}, json.dumps(calls)
