"""Names that somebody else has: what a real API server answers, and that nothing is ever taken over."""

from __future__ import annotations

import pytest
from e2e.apiserver.client import APPLY, MERGE, Object, RefusedError, until
from e2e.apiserver.world import World

from dynamo.operator.kube.client import MANAGER
from dynamo.operator.kube.resources import resource_of

SERVICES = resource_of("Service")


def test_a_foreign_object_is_never_taken_over(world: World) -> None:
    """A Service stands where ours belongs: the condition names it, the rest is made, and gone it is ours."""
    world.pipeline("probe")
    operator = world.operators.start()
    until("the names are known", lambda: named(world, "Service", "probe"))
    foreign = named(world, "Service", "probe").replace("probe", "llama", 1)
    theirs = service(world, foreign)
    made = world.admin.apply(SERVICES, theirs)
    begun = world.plane.mark()
    world.pipeline()
    until("the condition names it", lambda: world.condition().get("reason") == "NameConflict")
    assert foreign in world.condition()["message"]
    until("the rest is made", lambda: named(world, "StatefulSet", "llama"))
    found = world.get(SERVICES, foreign)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["spec"] == made["spec"]
    assert found["metadata"]["managedFields"] == made["metadata"]["managedFields"]
    tried = [write for write in world.writes(begun) if f"services/{foreign} " in write]
    assert tried, "the name is wanted"
    assert all(one.endswith(" 409") for one in tried), tried
    world.admin.delete(SERVICES, world.namespace, foreign)
    until("it is ours now", lambda: named(world, "Service", "llama") == foreign)
    world.until_ready()
    assert operator.process.poll() is None


def test_a_uid_that_differs_is_refused(world: World) -> None:
    """Every write of ours bears the uid that was seen; these are the real server's answers to another one."""
    made = world.admin.apply(SERVICES, service(world, "theirs"))
    path, other = SERVICES.path(world.namespace, "theirs"), "00000000-0000-4000-8000-000000000000"
    applied = f"{path}?fieldManager={MANAGER}&force=true"
    for patch, content in ((service(world, "theirs", uid=other), APPLY), ({"metadata": {"uid": other}}, MERGE)):
        with pytest.raises(RefusedError, match=r"metadata\.uid") as refused:
            world.admin.ask("PATCH", applied if content == APPLY else path, patch, content)
        assert refused.value.code == 422
    missing = f"{SERVICES.path(world.namespace, 'gone')}?fieldManager={MANAGER}&force=true"
    assert world.admin.code("PATCH", missing, service(world, "gone", uid=other), APPLY) == 409
    assert world.admin.code("DELETE", path, {"preconditions": {"uid": other}}) == 409
    assert world.get(SERVICES, "theirs")["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert world.admin.get(SERVICES, world.namespace, "gone") is None


def service(world: World, name: str, **metadata: str) -> Object:
    """Somebody's."""
    return {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": world.namespace, **metadata},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}},
    }  # fmt: skip


def named(world: World, kind: str, pipeline: str) -> str:
    """The first child of this kind."""
    return next((name for k, name in world.children(pipeline) if k == kind), "")
