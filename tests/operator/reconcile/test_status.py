"""The status tells the truth: counts, conditions, why a pod waits; and it doesn't change at rest."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from tests.operator.admission import admit
from tests.operator.pipelines import SMALLEST, Spec, body, pipeline, specs, valid_pipelines
from tests.operator.played_cluster import NOW, Cluster, planned

from dynamo.operator.api.conditions import Reason, Trouble, Type
from dynamo.operator.api.v1alpha1 import DynamoPipeline, PipelineStatus
from dynamo.operator.cluster.observe import GIST_CHARACTERS, Observed, observe, why
from dynamo.operator.cluster.termination_message import chosen, gist
from dynamo.operator.manifests import naming
from dynamo.operator.reconcile.status import failed_status, first_status, status

EARLY, LATE = "2026-11-21T10:00:00Z", "2026-11-21T11:00:00Z"
URL = "http://llama-frontend.serving.svc:8000"
Status = dict[str, Any]


def of(pipeline: DynamoPipeline, observed: Observed, previous: Status | None = None, now: str = EARLY) -> Status:
    return status(pipeline, planned(pipeline), observed, previous or {}, now, url=URL)


def condition(state: Status, kind: Type) -> Status:
    return next((c for c in state["conditions"] if c["type"] == kind), {})


def mocker(**component: Any) -> DynamoPipeline:
    return pipeline({"components": [{"engine": "mocker", **component}]})


def settled(pipeline: DynamoPipeline) -> Cluster:
    cluster = Cluster()
    cluster.settle(pipeline)
    return cluster


def with_pod(pipeline: DynamoPipeline, pod_status: Status) -> Status:
    """The status when the second worker is in trouble."""
    cluster = settled(pipeline)
    name = sorted(cluster.names("Pod"))[-1]
    cluster.objects["Pod", name]["status"] = pod_status
    return of(pipeline, cluster.observed())


@settings(max_examples=40, deadline=None)
@given(valid_pipelines)
def test_a_settled_pipeline_is_ready(pipeline: DynamoPipeline) -> None:
    """Ready, nothing in progress, and the types take the status."""
    status = of(pipeline, settled(pipeline).observed())
    ready = condition(status, Type.READY)
    assert (ready["status"], ready["observedGeneration"]) == ("True", 1)
    assert not condition(status, Type.RECONCILING)
    assert not condition(status, Type.STALLED)
    PipelineStatus.model_validate(status, strict=False)


@settings(max_examples=20, deadline=None)
@given(valid_pipelines)
def test_at_rest_the_status_is_the_same_bytes(pipeline: DynamoPipeline) -> None:
    """A later look at the same cluster changes nothing, times included."""
    observed = settled(pipeline).observed()
    first = of(pipeline, observed)
    assert of(pipeline, observed, first, LATE) == first


def test_columns() -> None:
    """What `kubectl get` prints."""
    two = pipeline({"components": [{"engine": "mocker", "replicas": 2}, {"name": "e", "engine": "echo_core"}],
                    "replicas": 3})  # fmt: skip
    status = of(two, settled(two).observed())
    assert (status["workers"], status["engines"], status["model"], status["url"]) == (
        "5/5",
        "mocker,echo_core",
        "llama",
        URL,
    )
    assert (status["namespace"], status["observedGeneration"]) == ("serving_llama", 1)


def test_scale_speaks_of_what_follows_spec_replicas() -> None:
    """An autoscaler counts the pods of the selector: one component's, one per worker."""
    two = pipeline({"components": [{"engine": "mocker", "replicas": 2}, {"name": "e", "engine": "echo_core"}],
                    "replicas": 3})  # fmt: skip
    status = of(two, settled(two).observed())
    assert status["replicas"] == 3
    assert status["selector"] == f"{naming.PIPELINE}=llama,{naming.COMPONENT}=e"
    assert "selector" not in of(mocker(replicas=1), settled(mocker(replicas=1)).observed())
    vllm = {"engine": "vllm", "nodes": 2, "tensorParallelSize": 2}
    groups = pipeline({"components": [vllm], "replicas": 2, "model": {"source": "/m"}})
    status = of(groups, settled(groups).observed())
    assert (status["replicas"], status["selector"].rpartition(",")[2]) == (2, "apps.kubernetes.io/pod-index=0")


@pytest.mark.parametrize(
    ("pod", "reason", "said"),
    [
        ({}, Reason.STARTING, "is not ready yet"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "0/4 nodes: insufficient nvidia.com/gpu"}]},
            Reason.UNSCHEDULABLE, "Unschedulable: 0/4 nodes: insufficient nvidia.com/gpu",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]},
            Reason.IMAGE_PULL_BACK_OFF, "ImagePullBackOff: no such image",
        ),
        (
            {"containerStatuses": [
                {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                 "lastState": {"terminated": {"exitCode": 2, "message": "log\n--engine is required\n"}}}]},
            Reason.CRASH_LOOP_BACK_OFF, "CrashLoopBackOff: exit code 2: --engine is required",
        ),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            Reason.OOM_KILLED, "OOMKilled: exit code 137",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "CreateContainerConfigError",
                                                          "message": 'secret "hf" not found'}}}]},
            Reason.CREATE_CONTAINER_CONFIG_ERROR, 'secret "hf" not found',
        ),
        (
            {"containerStatuses": [
                {"state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            Reason.OOM_KILLED, "OOMKilled: exit code 137",
        ),
        (
            {"initContainerStatuses": [{"name": "model", "state": {"running": {}}}],
             "containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}]},
            Reason.LOADING_MODEL, "is loading its model",
        ),
        ({"initContainerStatuses": [{"name": "theirs", "state": {"running": {}}}]}, Reason.STARTING, "not ready"),
        (
            {"initContainerStatuses": [
                {"name": "model", "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                 "lastState": {"terminated": {"exitCode": 1, "message": "hf://a/b: 401, a token is needed"}}}]},
            Reason.CRASH_LOOP_BACK_OFF, "could not load its model: exit code 1: hf://a/b: 401, a token is needed",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk pressure"}, Reason.EVICTED, "disk pressure"),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}, Reason.STARTING, "not ready"),
    ],
)  # fmt: skip
def test_messages_name_the_pod_and_why_it_waits(pod: Status, reason: Reason, said: str) -> None:
    """In every condition that it concerns, and in the REASON column."""
    pipeline = mocker(replicas=2)
    state = with_pod(pipeline, pod)
    name = f"llama-worker-{planned(pipeline).workers[0].revision}-1"
    for kind in (Type.READY, Type.WORKERS_READY):
        assert condition(state, kind)["status"] == "False"
        assert condition(state, kind)["reason"] == reason
        assert condition(state, kind)["message"] == f"worker: 1 of 2 ready; pod {name} {said}" or (
            said in condition(state, kind)["message"] and name in condition(state, kind)["message"]
        )
    assert condition(state, Type.RECONCILING)["status"] == "True"
    assert condition(state, Type.AVAILABLE)["status"] == "True", "the other worker serves"
    assert state["workers"] == "1/2"


def test_a_long_last_line_is_cut() -> None:
    """A message is read in a terminal."""
    ended = {"exitCode": 1, "message": "\n".join(["a trace", "x" * 1000, ""])}
    container = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended}}
    waiting = why({"kind": "Pod", "metadata": {"name": "a-0"}, "status": {"containerStatuses": [container]}})
    assert waiting is not None
    assert waiting.message == "exit code 1: " + "x" * (GIST_CHARACTERS - 1) + "…"


def test_the_model_is_loaded_once_a_worker_of_this_revision_serves() -> None:
    """One that is lost doesn't unload it; a new revision has to load it first; nobody has it without workers."""
    example, edited = mocker(replicas=2), mocker(replicas=2, kvCacheBlockSize=32)
    cluster = settled(example)
    assert condition(of(example, cluster.observed()), Type.MODEL_LOADED)["reason"] == "Loaded"
    assert condition(with_pod(example, {}), Type.MODEL_LOADED)["status"] == "True"
    rolling = condition(of(edited, cluster.observed()), Type.MODEL_LOADED)
    assert (rolling["status"], rolling["reason"]) == ("False", "Starting")
    none = mocker(replicas=0)
    assert condition(of(none, settled(none).observed()), Type.MODEL_LOADED)["reason"] == "ScaledToZero"


def test_what_keeps_the_model_from_being_loaded_is_told() -> None:
    """The only worker's trouble is ModelLoaded's; an old revision's isn't."""
    example, edited = mocker(replicas=1), mocker(replicas=1, kvCacheBlockSize=32)
    failed = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "none"}}}]}
    assert condition(with_pod(example, failed), Type.MODEL_LOADED)["reason"] == "ImagePullBackOff"
    assert condition(with_pod(example, failed), Type.AVAILABLE)["reason"] == "NoWorkers"
    cluster = settled(example)
    cluster.objects["Pod", min(cluster.names("Pod"))]["status"] = failed
    assert condition(of(edited, cluster.observed()), Type.MODEL_LOADED)["reason"] == "Starting"


def test_loading_is_no_news_while_something_rolls() -> None:
    """Ready's reason stays RollingOut; its message says what goes on."""
    cluster, new = settled(mocker()), mocker(kvCacheBlockSize=32)
    cluster.reconcile(new)
    cluster.step()
    (name,) = [name for name in cluster.names("Pod") if planned(new).workers[0].revision in name]
    cluster.objects["Pod", name]["status"] = {"initContainerStatuses": [{"name": "model", "state": {"running": {}}}]}
    status = of(new, cluster.observed())
    assert condition(status, Type.READY)["reason"] == "RollingOut"
    assert condition(status, Type.READY)["message"].endswith(f"pod {name} is loading its model")
    assert condition(status, Type.MODEL_LOADED)["reason"] == "LoadingModel"


def test_pods_that_nobody_makes() -> None:
    """A quota: the Deployment's controller says so; of a StatefulSet's pod, at least that it lacks."""
    pipeline = mocker(replicas=2)
    cluster = settled(pipeline)
    lacking = sorted(cluster.names("Pod"))[-1]
    del cluster.objects["Pod", lacking]
    ready = condition(of(pipeline, cluster.observed()), Type.WORKERS_READY)
    assert ready["reason"] == "Starting"
    assert f"pod {lacking} is not created yet" in ready["message"]
    deployment = cluster.objects["Deployment", "llama-frontend"]
    refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: small"}
    deployment["status"] = {"conditions": [refused]}
    ready = condition(of(pipeline, cluster.observed()), Type.FRONTEND_READY)
    assert (ready["reason"], "exceeded quota: small" in ready["message"]) == ("QuotaExceeded", True)
    deployment["status"] = {"conditions": [{**refused, "message": "violates PodSecurity"}]}
    assert condition(of(pipeline, cluster.observed()), Type.FRONTEND_READY)["reason"] == "AdmissionRejected"


def test_a_pod_that_hangs_is_named() -> None:
    """Its node doesn't answer, and Kubernetes doesn't make another of its name meanwhile."""
    pipeline = mocker(replicas=2)
    cluster = settled(pipeline)
    name = sorted(cluster.names("Pod"))[-1]
    cluster.objects["Pod", name]["metadata"]["deletionTimestamp"] = "2026-11-20T23:50:00Z"
    ready = condition(of(pipeline, cluster.observed()), Type.WORKERS_READY)
    assert ready["reason"] == Reason.NODE_LOST
    assert f"pod {name} NodeLost: is stuck terminating: node" in ready["message"]


def test_a_pod_that_hangs_is_replaced() -> None:
    """One more in its place, and all is well, with nothing written at rest; once it is gone, one less again."""
    example = pipeline({"components": [{"engine": "mocker"}], "replicas": 2})
    cluster = settled(example)
    name = min(cluster.names("Pod"))
    cluster.objects["Pod", name]["metadata"]["deletionTimestamp"] = "2026-11-20T23:50:00Z"
    cluster.settle(example)
    revision = planned(example).workers[0].revision
    assert cluster.revisions("worker") == {revision: 3}
    assert budget(cluster) == 2, "one that serves may still be drained"
    status = of(example, cluster.observed())
    assert (condition(status, Type.READY)["status"], status["workers"], status["replicas"]) == ("True", "2/2", 2)
    assert not condition(status, Type.RECONCILING)
    del cluster.objects["Pod", name]
    cluster.step()
    status = of(example, cluster.observed())
    assert (condition(status, Type.READY)["status"], condition(status, Type.READY)["reason"]) == ("False", "Scaling")
    cluster.settle(example)
    assert (cluster.revisions("worker"), budget(cluster)) == ({revision: 2}, 1)
    assert condition(of(example, cluster.observed()), Type.READY)["status"] == "True"


def budget(cluster: Cluster) -> int:
    """How many workers may be missing at a time."""
    return int(cluster.objects["PodDisruptionBudget", "llama-worker"]["spec"]["maxUnavailable"])


def test_a_group_with_a_pod_that_hangs_is_replaced() -> None:
    """As a whole, by a group of another number: its own can't be whole again."""
    vllm = {"engine": "vllm", "nodes": 2, "tensorParallelSize": 2}
    example = pipeline({"components": [vllm], "replicas": 2, "model": {"source": "/m"}})
    cluster = settled(example)
    name = min(cluster.names("Pod"))
    cluster.objects["Pod", name]["metadata"]["deletionTimestamp"] = "2026-11-20T23:50:00Z"
    cluster.settle(example)
    groups = [entry["metadata"]["name"][-1] for entry in cluster.live() if entry["kind"] == "StatefulSet"]
    assert groups == ["0", "1", "2"]
    status = of(example, cluster.observed())
    assert (condition(status, Type.READY)["status"], status["workers"], status["replicas"]) == ("True", "2/2", 2)


def test_a_rollout_is_not_ready_before_the_old_is_gone() -> None:
    """Enough pods serve all the time, and still this generation isn't done."""
    cluster, new = settled(mocker(replicas=3)), mocker(replicas=3, kvCacheBlockSize=32)
    status = of(new, cluster.observed())
    ready = condition(status, Type.READY)
    assert (ready["status"], ready["reason"]) == ("False", "RollingOut")
    assert "0 of 3 of revision" in ready["message"]
    assert status["components"][0]["updatedReplicas"] == 0
    assert status["components"][0]["readyReplicas"] == 3
    assert condition(status, Type.AVAILABLE)["status"] == "True"
    cluster.settle(new)
    assert condition(of(new, cluster.observed()), Type.READY)["status"] == "True"


def test_a_frontend_that_rolls_is_not_ready() -> None:
    """Its old pods don't count, nor does what the Deployment's controller hasn't seen."""
    pipeline = mocker()
    cluster = settled(pipeline)
    deployment = cluster.objects["Deployment", "llama-frontend"]
    deployment["status"] |= {"replicas": 2}
    assert condition(of(pipeline, cluster.observed()), Type.FRONTEND_READY)["reason"] == "RollingOut"
    deployment["status"] |= {"replicas": 1, "observedGeneration": 1}
    deployment["metadata"]["generation"] = 2
    assert condition(of(pipeline, cluster.observed()), Type.FRONTEND_READY)["status"] == "False"


def test_too_many_is_not_ready_either() -> None:
    """Scaling down is done when they are gone."""
    cluster, fewer = settled(mocker(replicas=3)), mocker(replicas=1)
    ready = condition(of(fewer, cluster.observed()), Type.READY)
    assert (ready["reason"], ready["status"]) == ("Scaling", "False")
    assert "2 more than the 1 wanted" in ready["message"]


def test_zero_is_a_wish() -> None:
    """Ready, but not available."""
    status = of(mocker(replicas=0), settled(mocker(replicas=0)).observed())
    assert condition(status, Type.READY)["reason"] == "ScaledToZero"
    assert condition(status, Type.AVAILABLE)["reason"] == "NoWorkers"


def test_nothing_there_yet() -> None:
    """The first moments: not ready, not available, in progress."""
    status = of(mocker(), Observed())
    assert [c["status"] for c in status["conditions"]] == ["False", "False", "False", "False", "False", "True"]
    assert condition(status, Type.AVAILABLE)["reason"] == "NoFrontend"


def test_first_sight_is_never_taken_for_done() -> None:
    """kstatus takes an object without conditions for current."""
    example = pipeline(SMALLEST)
    state = first_status(example, {}, EARLY)
    assert condition(state, Type.READY)["status"] == "Unknown"
    assert condition(state, Type.RECONCILING)["status"] == "True"


@pytest.mark.parametrize(("final", "kind"), [(True, Type.STALLED), (False, Type.RECONCILING)])
def test_trouble_is_told_and_the_rest_is_kept(final: bool, kind: Type) -> None:
    """Children are untouched, and so are their counts; only what can't end by itself is stalled."""
    pipeline = mocker()
    before = of(pipeline, settled(pipeline).observed())
    state = failed_status(pipeline, Trouble(Reason.NAME_CONFLICT, "a Service is in the way", final), before, LATE)
    assert condition(state, Type.READY)["reason"] == "NameConflict"
    assert condition(state, kind)["status"] == "True"
    assert state["components"] == before["components"]


def test_times_move_with_the_status_alone() -> None:
    """Another message keeps the time, another status doesn't."""
    pipeline = mocker(replicas=2)
    first = with_pod(pipeline, {})
    cluster = settled(pipeline)
    second = of(pipeline, cluster.observed(), first, LATE)
    assert condition(second, Type.READY)["lastTransitionTime"] == LATE
    assert condition(second, Type.FRONTEND_READY)["lastTransitionTime"] == EARLY


def test_routable_can_be_less_than_ready() -> None:
    """What frontends can't reach serves nobody, whatever its pod says; the message names it."""
    pipeline = mocker(replicas=2)
    cluster = settled(pipeline)
    name = min(cluster.names("Pod"))
    status = of(pipeline, observe(cluster.live(), NOW, lost={name}))
    assert status["workers"] == "1/2"
    assert [(c["readyReplicas"], c["availableReplicas"], c["updatedReplicas"]) for c in status["components"]] == [
        (2, 1, 1)
    ]
    said = condition(status, Type.READY)
    assert (said["status"], said["reason"]) == ("False", Reason.UNREACHABLE)
    assert f"pod {name} Unreachable: is ready, but the frontends can't reach it" in said["message"]
    assert of(pipeline, observe(cluster.live(), NOW, lost={"a-pod-of-before"})) == of(pipeline, cluster.observed())


def test_a_group_whose_leader_cant_be_reached_serves_nobody() -> None:
    """Its followers are ready for nothing."""
    labels = {naming.COMPONENT: "a", naming.REVISION: "r", naming.GROUP: "0"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [{"kind": "Pod", "metadata": {"name": f"a-0-{n}", "labels": labels}, "status": ready} for n in range(2)]
    table = {"kind": "StatefulSet", "spec": {"replicas": 2}, "metadata": {"name": "a-0", "labels": labels}}
    assert observe([table, *pods], NOW).sets[0].ready == {0}
    assert observe([table, *pods], NOW, lost={"a-0-0"}).sets[0].ready == frozenset()


def test_a_pod_on_a_dead_node_counts_as_gone() -> None:
    """It ends for ever; after its grace nobody waits for it."""
    labels = {naming.COMPONENT: "a", naming.REVISION: "r"}
    pod: Status = {"kind": "Pod", "metadata": {"name": "a-0", "labels": labels}}
    table = {
        "kind": "StatefulSet",
        "spec": {"replicas": 1},
        "metadata": {"name": "a", "labels": pod["metadata"]["labels"]},
    }
    ending, dead = copy.deepcopy(pod), copy.deepcopy(pod)
    ending["metadata"]["deletionTimestamp"] = "2026-11-20T23:59:30Z"
    dead["metadata"]["deletionTimestamp"] = "2026-11-20T23:50:00Z"
    assert observe([table, ending], NOW).sets[0].present == 1
    assert observe([table, dead], NOW).sets[0].present == 0
    assert why(ending) is None


def test_the_body_of_a_pipeline_carries_its_generation() -> None:
    """What the status speaks of is what the API server counted."""
    raw = body(SMALLEST)
    raw["metadata"]["generation"] = 7
    result = DynamoPipeline.model_validate(raw, strict=False)
    assert of(result, Observed())["observedGeneration"] == 7


@settings(max_examples=15, deadline=None)
@given(specs())
def test_the_api_server_takes_every_status(spec: Spec) -> None:
    """At first sight, on the way, at rest and in trouble: the CRD's schema has a place for all of it."""
    example, cluster, statuses = pipeline(spec), Cluster(), []
    statuses.append(first_status(example, {}, EARLY))
    cluster.reconcile(example)
    statuses.append(of(example, cluster.observed(), statuses[-1]))
    cluster.settle(example)
    statuses.append(of(example, cluster.observed(), statuses[-1], LATE))
    statuses.append(failed_status(example, Trouble(Reason.ADMISSION_REJECTED, "no", True), statuses[-1], LATE))
    for condition in statuses:
        assert admit({**body(spec), "status": condition}) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["10:02:51 worker.main: leaving", "Error: mine.py:4: KeyError", "resource_tracker: leaked"],
         "Error: mine.py:4: KeyError"),
        (["10:02:51 ERROR worker.engines.python: no room", ""], "no room"),
        (['{"time": "t", "level": "ERROR", "target": "a", "message": "no room"}'], "no room"),
        (['{"half": '], '{"half":'),
        (["a" * 400], "a" * 299 + "…"),
        ([], ""),
    ],
)  # fmt: skip
def test_last_words(lines: list[str], said: str) -> None:
    """What our processes end with, whatever libraries say after it; without time, level and logger, also as JSON."""
    assert gist(chosen(lines), 300) == said
