"""What users and namespaces get wrong, before a real API server: told in its words, tried less and less, mended."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from e2e.apiserver.client import Object, until
from e2e.apiserver.operators import NAMESPACES
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import PIPELINES, Resource, resource_of

LIMITS = Resource("v1", "LimitRange", "limitranges")
SETS, CLAIMS = resource_of("StatefulSet"), resource_of("PersistentVolumeClaim")
MOCKER: Object = {"engine": "mocker", "replicas": 2}
CALM_SECONDS, CALM_WRITES = 5.0, 5


def test_a_pod_template_that_the_server_cannot_type(world: World) -> None:
    """It answers 500 to a field that no schema has: `Stalled`, and not the server's failure that a 500 is else."""
    operator = world.operators.start()
    world.pipeline(spec={"components": [{**MOCKER, "podTemplate": {"spec": {"noSuchField": 1}}}]})
    until("it is stalled", lambda: world.condition("Stalled").get("reason") == "AdmissionRejected")
    message = world.condition("Stalled")["message"]
    assert "llama-worker" in message
    assert "Kind=StatefulSet" in message
    assert "noSuchField" in message
    assert ("Deployment", "llama-frontend") in world.children(), "the rest is made"
    world.settle()
    mark = world.plane.mark()
    time.sleep(CALM_SECONDS)
    assert len(world.writes(mark)) <= CALM_WRITES, "later each time"
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()
    assert operator.defects() == []


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"resources": {"limits": {"cpu": "many"}}}, "containers[0].resources.limits.cpu: 'many' must be a quantity"),
        ({"resources": {"requests": {"cpu": "1e999999999"}}}, "requests.cpu: '1e999999999' must be a quantity"),
    ],
    ids=["no-number", "too-large"],
)
def test_an_unreadable_amount(world: World, container: Object, said: str) -> None:
    """It answers 500 without field or value, or computes until its time is over: `InvalidSpec` names both instead."""
    world.operators.start()
    template = {"spec": {"containers": [{"name": "worker", **container}]}}
    world.pipeline(spec={"components": [{**MOCKER, "podTemplate": template}]})
    until("it is stalled", lambda: world.condition("Stalled").get("reason") == "InvalidSpec")
    assert said in world.condition("Stalled")["message"]
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            {"spec": {"terminationGracePeriodSeconds": 1.5}},
            "look at spec.template.spec.terminationGracePeriodSeconds is 1.5",
        ),
        ({"metadata": {"creationTimestamp": "soon"}}, "look at spec.template.metadata.creationTimestamp is 'soon'"),
    ],
)
def test_what_the_server_cannot_convert(world: World, template: Object, said: str) -> None:
    """It answers 500, and no outage is told: `Refused`, with the object and the fields that it may mean."""
    world.operators.start()
    world.pipeline(spec={"components": [{**MOCKER, "podTemplate": template}]})
    until("it is stalled", lambda: world.condition("Stalled").get("reason") == "AdmissionRejected")
    assert said in world.condition("Stalled")["message"]
    assert "llama-worker" in world.condition("Stalled")["message"]


def test_a_field_that_cannot_change(world: World) -> None:
    """The class of a claim: the server's sentence, `Stalled`, and what runs goes on; the old spec is the way back."""
    world.operators.start()
    world.pipeline(spec=cached("one"))
    world.until_ready()
    (claim,) = [item["metadata"] for item in world.items(CLAIMS)]
    world.pipeline(spec=cached("other"))
    until("it is stalled", lambda: world.condition("Stalled").get("reason") == "AdmissionRejected")
    assert "immutable" in world.condition("Stalled")["message"]
    assert claim["name"] in world.condition("Stalled")["message"]
    assert world.condition("Available")["status"] == "True"
    world.pipeline(spec=cached("one"))
    world.until_ready()
    assert world.uid(CLAIMS, claim["name"]) == claim["uid"]


def test_what_a_set_can_not_change_is_another_revision(world: World) -> None:
    """No edit of a spec ever edits a StatefulSet in place; `restart` alone is such an edit: for a rotated Secret."""
    world.operators.start()
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()
    before = {item["metadata"]["uid"] for item in world.items(SETS)}
    for spec in ({"components": [{**MOCKER, "kvCacheBlockSize": 32}]}, {"components": [MOCKER], "restart": "today"}):
        world.pipeline(spec=spec)
        world.until_ready()
        now = {item["metadata"]["uid"] for item in world.items(SETS)}
        assert len(now) == 1
        assert not now & before
        before |= now


def forbidden_by_standard(world: World) -> Object:
    """A namespace that enforces `restricted`, and a pod that wants what the platform's `baseline` lets pass."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    world.admin.merge(NAMESPACES, None, world.namespace, {"metadata": {"labels": labels}})
    container = {"name": "frontend", "securityContext": {"allowPrivilegeEscalation": True}}
    return {"components": [MOCKER], "frontend": {"podTemplate": {"spec": {"containers": [container]}}}}


def forbidden_by_limits(world: World) -> Object:
    """Less memory than the frontend asks for."""
    limit = {"type": "Container", "max": {"memory": "1Mi"}}
    metadata = {"name": "small", "namespace": world.namespace}
    world.admin.apply(LIMITS, {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata,
                               "spec": {"limits": [limit]}})  # fmt: skip
    return {"components": [MOCKER]}


@pytest.mark.parametrize(
    ("forbid", "said"),
    [
        (forbidden_by_standard, "violates PodSecurity"),
        (forbidden_by_limits, "maximum memory usage per Container is 1Mi"),
    ],
)
def test_forbidden_pods(world: World, forbid: Callable[[World], Object], said: str) -> None:
    """By the namespace: the frontends' condition has the server's words; without what is forbidden all is well."""
    world.operators.start()
    world.pipeline(spec=forbid(world))
    until("the frontend says so", lambda: world.condition("FrontendReady").get("reason") == "AdmissionRejected")
    assert said in world.condition("FrontendReady")["message"]
    assert world.condition("Stalled") == {}, "a namespace may change"
    world.admin.code("DELETE", LIMITS.path(world.namespace, "small"))
    world.pipeline(spec={"components": [MOCKER], "restart": "now"})
    world.until_ready()


def test_an_autoscaler_sets_a_pipelines_replicas(world: World) -> None:
    """By the pipeline's scale subresource: the workers follow, and a rollout keeps the number."""
    world.operators.start()
    scaled = {"components": [{"engine": "mocker"}]}
    world.pipeline(spec=scaled)
    world.until_ready()
    world.admin.merge(PIPELINES, world.namespace, "llama", {"spec": {"replicas": 4}}, "scale")
    until("so many serve", lambda: world.ready() and world.live()["status"]["workers"] == "4/4")
    world.settle()
    (name,) = [item["metadata"]["name"] for item in world.items(SETS)]
    assert world.get(SETS, name)["spec"]["replicas"] == 4
    world.pipeline(spec={**scaled, "restart": "now"})
    until("it has rolled", lambda: world.ready() and name not in [s["metadata"]["name"] for s in world.items(SETS)])
    (left,) = world.items(SETS)
    assert left["spec"]["replicas"] == 4


def cached(storage: str) -> Object:
    """With a claim of this class; one of none may still get a class."""
    return {"components": [MOCKER], "model": {"cache": {"size": "1Gi", "storageClassName": storage}}}
