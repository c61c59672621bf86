"""A NATS for each namespace on a real API server: made once, shared, put right, collected after the last pipeline."""

from __future__ import annotations

import base64
import json

import pytest
import yaml
from e2e.apiserver.client import Object, until
from e2e.apiserver.operators import CONFIG, REPOSITORY, SECRETS
from e2e.apiserver.plane import Plane
from e2e.apiserver.world import World
from e2e.kind.binaries import version_of

from dynamo.operator.credentials import permissions as rights
from dynamo.operator.credentials.nats_keys import NatsIssuer, is_user_of
from dynamo.operator.kube.client import MANAGER
from dynamo.operator.kube.resources import PIPELINES, Resource, resource_of
from dynamo.operator.manifests import nats

KINDS = (SECRETS, *(resource_of(kind) for kind in ("Service", "NetworkPolicy", "Deployment")))
NAMES = {kind: f"{kind.plural}/{nats.NAME}" for kind in KINDS}


@pytest.fixture(scope="module")
def given(plane: Plane) -> Object:
    """What the chart tells the operator of it."""
    chart, what = str(REPOSITORY / "charts/dynamo-platform"), "--show-only=templates/operator-config.yaml"
    version = f"--kube-version={version_of('k8s.io/kubernetes')}"
    text = plane.run_helm("template", "demo", chart, "--set=nats.perNamespace=true", what, version)
    found: Object = yaml.safe_load(yaml.safe_load(text)["data"]["config.yaml"])["nats"]
    return found


@pytest.fixture
def world(world: World, given: Object) -> World:
    """With an operator's configuration that says so."""
    (world.plane.folder / "config.yaml").write_text(json.dumps(CONFIG | {"nats": given}))
    return world


def data(world: World, name: str = nats.NAME) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in world.get(SECRETS, name)["data"].items()}


def owners(world: World, kind: Resource) -> set[str]:
    found = world.admin.get(kind, world.namespace, nats.NAME)
    return {reference["name"] for reference in found["metadata"]["ownerReferences"]} if found else set()


def is_let_in(world: World, name: str) -> bool:
    """Whether the server knows the pipeline's user."""
    user = data(world, f"{name}-credentials")["nats.user.creds"]
    return is_user_of(user, NatsIssuer.of(data(world)), rights.subjects(f"{world.namespace}_{name}"))


def both_ready(world: World) -> None:
    for name in ("llama", "other"):
        world.pipeline(name)
    for name in ("llama", "other"):
        world.until_ready(name)
    world.settle()


def test_two_pipelines_share_one(world: World) -> None:
    """Each object is created once; for the second pipeline an owner is added, at most; at rest nothing is written."""
    begun = world.plane.mark()
    world.operators.start()
    both_ready(world)
    writes = [write for write in world.writes(begun) if nats.NAME in write]
    assert all(write.endswith((" 200", " 201")) for write in writes), writes
    for kind in KINDS:
        assert len([write for write in writes if NAMES[kind] in write and write.endswith("201")]) == 1
        assert len([write for write in writes if NAMES[kind] in write]) <= 2
        assert owners(world, kind) == {"llama", "other"}
        assert (MANAGER, "Apply", "") in world.managers(kind, nats.NAME)
    assert is_let_in(world, "llama")
    assert is_let_in(world, "other")
    rest = world.plane.mark()
    for name in ("llama", "other"):
        world.admin.merge(PIPELINES, world.namespace, name, {"metadata": {"annotations": {"nudge": "1"}}})
    world.settle()
    assert world.writes(rest) == []


def test_a_later_pipeline_is_added(world: World) -> None:
    """One write of each object, which leaves the keys as they are."""
    world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    before, begun = data(world), world.plane.mark()
    world.pipeline("other")
    world.until_ready("other")
    world.settle()
    writes = [write for write in world.writes(begun) if nats.NAME in write]
    assert sorted(writes) == sorted(f"patch {NAMES[kind]} 200" for kind in KINDS)
    assert data(world) == before
    assert [owners(world, kind) for kind in KINDS] == [{"llama", "other"}] * len(KINDS)


@pytest.mark.parametrize("up", [True, False], ids=["operator up", "operator down"])
def test_the_last_pipeline_takes_it_along(world: World, up: bool) -> None:
    """Kubernetes' own garbage collector takes out the owner that is gone, and in the end all of it."""
    operator = world.operators.start()
    both_ready(world)
    before = data(world)
    if not up:
        assert operator.end() == 0
    world.plane.kubectl("delete", "dynamopipelines/llama", "-n", world.namespace)
    for kind in KINDS:
        until("one owner is left", lambda kind=kind: owners(world, kind) == {"other"})  # type: ignore[misc]
    assert data(world) == before
    world.plane.kubectl("delete", "dynamopipelines/other", "-n", world.namespace)
    for kind in KINDS:
        until("it is gone", lambda kind=kind: world.admin.get(kind, world.namespace, nats.NAME) is None)  # type: ignore[misc]
    if up:
        world.settle()
        assert [kind for kind in KINDS if world.admin.get(kind, world.namespace, nats.NAME)] == []
        assert operator.defects() == []


def test_pipelines_that_come_and_go_at_once_have_one(world: World) -> None:
    """Whoever comes as the last one goes finds a server that knows its user, in whatever order it is heard of."""
    world.operators.start()
    world.pipeline("p0")
    world.until_ready("p0")
    for number in range(1, 5):
        world.plane.kubectl("delete", f"dynamopipelines/p{number - 1}", "-n", world.namespace, "--wait=false")
        world.pipeline(f"p{number}")
        world.until_ready(f"p{number}")
        for kind in KINDS:
            until(
                "it is the only owner",
                lambda kind=kind, number=number: owners(world, kind) == {f"p{number}"},  # type: ignore[misc]
            )
        until("it is let in", lambda number=number: is_let_in(world, f"p{number}"))  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.kind))
def test_what_a_tenant_does_to_it_is_undone(world: World, kind: Resource) -> None:
    """Deleted, stripped of its labels, edited; the pod template is the chart's again."""
    world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    wanted = world.get(kind, nats.NAME)
    world.admin.delete(kind, world.namespace, nats.NAME)
    nudge(world, "1")
    until("it is back", lambda: world.uid(kind, nats.NAME) not in ("", wanted["metadata"]["uid"]))
    labels: Object = dict.fromkeys(nats.labels())
    world.admin.merge(kind, world.namespace, nats.NAME, {"metadata": {"labels": labels}})
    nudge(world, "2")
    until("it has its labels", lambda: world.get(kind, nats.NAME)["metadata"].get("labels") == nats.labels())
    until("its user is let in", lambda: is_let_in(world, "llama"))
    if kind.kind == "Deployment":
        edit = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 77}}, "replicas": 3}}
        world.admin.merge(kind, world.namespace, nats.NAME, edit)
        until("it is as it was", lambda: world.get(kind, nats.NAME)["spec"]["replicas"] == 1)
        pods = [one["spec"]["template"]["spec"] for one in (world.get(kind, nats.NAME), wanted)]
        assert [pod["terminationGracePeriodSeconds"] for pod in pods] == [10, 10]
    world.until_ready()
    world.settle()
    rest = world.plane.mark()
    nudge(world, "3")
    world.settle()
    assert world.writes(rest) == []


def nudge(world: World, what: str) -> None:
    """Nothing watches Secrets: so that it is reconciled."""
    world.admin.merge(PIPELINES, world.namespace, "llama", {"metadata": {"annotations": {"nudge": what}}})


def test_somebodys_secret_of_that_name_stays(world: World) -> None:
    """The pipeline says what to remove, and goes on once it is."""
    metadata = {"name": nats.NAME, "namespace": world.namespace}
    theirs = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"a": "b"}}
    world.admin.apply(SECRETS, theirs)
    version = world.get(SECRETS, nats.NAME)["metadata"]["resourceVersion"]
    world.operators.start()
    world.pipeline()
    until("it says so", lambda: world.condition("Stalled").get("reason") == "NameConflict")
    assert "delete it, because the NATS of this namespace needs the name" in world.condition("Stalled")["message"]
    assert world.get(SECRETS, nats.NAME)["metadata"]["resourceVersion"] == version
    assert [kind for kind in KINDS[1:] if world.admin.get(kind, world.namespace, nats.NAME)] == []
    world.admin.delete(SECRETS, world.namespace, nats.NAME)
    nudge(world, "1")
    world.until_ready()
    assert is_let_in(world, "llama")
