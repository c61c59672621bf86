"""A namespace whose quota is used up, and a larger one: the status says so, and the pipeline is served by itself."""

from __future__ import annotations

from e2e.apiserver.client import until
from e2e.apiserver.world import SPEC, World

from dynamo.operator.kube.resources import Resource, resource_of

QUOTAS = Resource("v1", "ResourceQuota", "resourcequotas")


def test_no_room_for_a_set(world: World) -> None:
    """What the operator may not make is named by Ready; the rest is made, and an edit needn't wait for the next try."""
    world.operators.start()
    limit(world, "count/statefulsets.apps", "0")
    world.pipeline()
    until("the condition says so", lambda: world.condition().get("reason") == "QuotaExceeded")
    assert "exceeded quota: small" in world.condition()["message"]
    assert world.condition("Reconciling")["status"] == "True"
    assert world.condition("Stalled") == {}
    until("the frontend is there", lambda: ("Deployment", "llama-frontend") in world.children())
    limit(world, "count/statefulsets.apps", "5")
    world.pipeline(spec={**SPEC, "restart": "now"})
    world.until_ready()


def test_no_room_for_pods(world: World) -> None:
    """Kubernetes may not make them: a Deployment says so, of a StatefulSet's pod the message says that it lacks."""
    world.operators.start()
    limit(world, "pods", "0")
    world.pipeline()
    until("the frontend says so", lambda: world.condition("FrontendReady").get("reason") == "QuotaExceeded")
    assert "exceeded quota: small" in world.condition("FrontendReady")["message"]
    (name,) = [item["metadata"]["name"] for item in world.items(resource_of("StatefulSet"))]
    until("the pod is named", lambda: f"pod {name}-0 is not created yet" in world.condition("WorkersReady")["message"])
    limit(world, "pods", "10")
    world.until_ready()


def limit(world: World, what: str, hard: str) -> None:
    """Until the quota counts."""
    metadata = {"name": "small", "namespace": world.namespace}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {what: hard}}}
    world.admin.apply(QUOTAS, body)
    until("the quota counts", lambda: world.get(QUOTAS, "small").get("status", {}).get("hard") == {what: hard})
