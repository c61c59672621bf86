"""What the status says of a pod beyond Kubernetes' words: its server, its claims, what its worker remarks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.pipelines import Spec, pipeline
from tests.operator.played_cluster import NOW
from tests.operator.reconcile.test_status import EARLY, Status, condition, mocker, of, settled

from dynamo.operator.api.conditions import Type
from dynamo.operator.cluster.observe import observe, why


def server_pod(component: Spec, **status: Any) -> Status:
    """The status of a pipeline whose only worker's pod has this status of its server's container."""
    one = pipeline({"components": [component]})
    cluster = settled(one)
    (name,) = sorted(n for n in cluster.names("Pod") if "frontend" not in n)
    pod = cluster.objects["Pod", name]
    stateful_set = next(o for (kind, _), o in cluster.objects.items() if kind == "StatefulSet")
    pod["spec"] = copy.deepcopy(stateful_set["spec"]["template"]["spec"])
    pod["status"] = {"initContainerStatuses": [{"name": "server", **status}]}
    return condition(of(one, cluster.observed()), Type.READY)


STOCK: Spec = {"engine": "openai", "image": "vllm/vllm-openai:v0.32.0", "startupTimeoutSeconds": 60}
AT_ONCE = dict.fromkeys(("startedAt", "finishedAt"), "2026-11-21T10:00:00Z")
TIMES = {"startedAt": "2026-11-21T10:00:00Z", "finishedAt": "2026-11-21T10:01:01Z"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"started": False, "state": {"running": {}}}, "waits for its server, which does not listen yet"),
        (
            {"started": False, "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 0, **TIMES}}},
            "its server did not listen on its port within 60 s (startupTimeoutSeconds): exit code 0",
        ),
        (
            {"state": {"terminated": {"exitCode": 2, "message": "no such flag: --modle", **AT_ONCE}}},
            "its server ended: exit code 2: no such flag: --modle",
        ),
        ({"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}, "no such image"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_get_ready_is_named(status: Status, said: str) -> None:
    """Whether it never listens, ends, or has no image; one that is ended for its time may end with 0."""
    assert said in server_pod(STOCK, **status)["message"]


def test_remarks_of_workers_stand_in_the_status() -> None:
    """Of one that isn't ready, in the place of how long it loads; of ready ones beside the good news."""
    one = mocker()
    cluster = settled(one)
    (name,) = sorted(n for n in cluster.names("Pod") if "frontend" not in n)
    remarks = {name: "the server at http://127.0.0.1:8000 lies", "another": "x"}
    ready = condition(of(one, observe(cluster.objects.values(), NOW, (), remarks)), Type.READY)
    assert ready["status"] == "True"
    assert ready["message"].endswith(f"; pod {name}: the server at http://127.0.0.1:8000 lies")
    running = {"name": "worker", "started": True, "state": {"running": {"startedAt": EARLY}}}
    cluster.objects["Pod", name]["status"] = {"containerStatuses": [running]}
    unready = condition(of(one, observe(cluster.objects.values(), NOW, (), remarks)), Type.READY)
    assert unready["message"].endswith(f"pod {name} is not ready yet: the server at http://127.0.0.1:8000 lies")


@pytest.mark.parametrize(
    ("claim", "made", "said"),
    [
        ({"resourceClaimTemplateName": "one-gpu"}, [], "a ResourceClaim of template one-gpu"),
        (
            {"resourceClaimTemplateName": "one-gpu"},
            [{"name": "g", "resourceClaimName": "w-0-g-x7"}],
            "ResourceClaim w-0-g-x7",
        ),
        ({"resourceClaimName": "shared"}, [], "ResourceClaim shared"),
    ],
)  # fmt: skip
def test_claims_that_a_pod_waits_for_are_named(claim: Status, made: list[Status], said: str) -> None:
    """The scheduler says on how many nodes it can't have them, and not which."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    pod: Status = {
        "metadata": {"name": "w-0"},
        "spec": {"resourceClaims": [{"name": "g", **claim}]},
        "status": {"conditions": [scheduled], "resourceClaimStatuses": made},
    }
    waiting = why(pod)
    assert waiting is not None
    assert waiting.message == f"0/3 nodes; it waits for {said}"
    del pod["status"]["conditions"]
    unseen = why(pod)
    assert unseen is not None
    assert unseen.message == f"is not ready yet; it waits for {said}"
