"""Argo CD itself, from git to a served pipeline and back, with our operator at work; kubelets are played."""

from __future__ import annotations

import time

import pytest
from e2e.apiserver.client import Object, until
from e2e.apiserver.lifecycle.test_agreement import lacking, turned
from e2e.apiserver.lives import OFTEN
from e2e.apiserver.world import Note, World
from e2e.gitops.argocd import APPLICATIONS, GITOPS, HOME, RESYNC_SECONDS, Application, ArgoCd, State
from e2e.gitops.repository import FOLDER, Repository

from dynamo.operator.kube.resources import PIPELINES, PODS, resource_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]

REST_SECONDS = 300.0
HELD_SECONDS = 2.0 * RESYNC_SECONDS
"""As long kubelets do nothing: it looks twice."""
SYNCED, OUT_OF_SYNC = "Synced", "OutOfSync"
HEALTHY, PROGRESSING, DEGRADED = "Healthy", "Progressing", "Degraded"
SETS_OF_WORKERS = resource_of("StatefulSet")
ABSENT = "registry.example.com/absent:1"


def spec(turn: str, **component: object) -> Object:
    """Whose children say which it is."""
    return turned(turn, turn, name="worker", **component)


def test_from_a_commit_to_healthy_and_back(world: World, argo: ArgoCd, repository: Repository) -> None:
    """Healthy when it is served and never before, by each commit; what can't be had is told; what git drops is gone."""
    world.operators.start()
    first = repository.pipelines({"llama": spec("a")})
    with argo.following(world.namespace, repository, FOLDER, world.namespace) as application:
        served(world, application, first, spec("a"))
        served(world, application, repository.pipelines({"llama": spec("b", replicas=3)}), spec("b", replicas=3))
        refused(world, application, repository)
        without_image(world, application, repository)
        served(world, application, repository.pipelines({"llama": spec("c")}), spec("c"))
        pruned(world, application, repository)
        emptied(world, application, repository)
        deleted(world, application)


def test_nobody_writes_at_rest(world: World, argo: ArgoCd, repository: Repository, note: Note) -> None:
    """Five minutes of self-heal and of an operator that looks all the time; then hands that change this and that."""
    operator = world.operators.through(world.plane.server, "one", OFTEN)
    revision = repository.pipelines({"llama": spec("a")})
    with argo.following(world.namespace, repository, FOLDER, world.namespace) as application:
        served(world, application, revision, spec("a"))
        world.settle()
        mark, seen, reconciles = world.plane.mark(), len(application.states()), operator.reconciles()
        time.sleep(REST_SECONDS)
        compared = application.states(seen)
        assert set(compared) <= {State(revision, SYNCED, HEALTHY)}
        assert (world.writes(mark), argo.writes(mark)) == ([], [])
        note(f"looks of the operator in {REST_SECONDS:.0f} s", operator.reconciles() - reconciles)
        note("comparisons that Argo CD wrote down meanwhile", len(compared))
        assert operator.reconciles() - reconciles >= 10
        assert len(compared) >= 10
        child_by_hand(world, application, revision)
        pipeline_by_hand(world, application, revision)


def test_an_application_for_each_folder(world: World, argo: ArgoCd, repository: Repository) -> None:
    """By the sample of an ApplicationSet over our own samples; namespaces are made."""
    world.operators.start()
    for file in sorted(one for one in (GITOPS / "pipelines").rglob("*") if one.is_file()):
        repository.write(str(file.relative_to(GITOPS.parent)), file.read_text())
    revision = repository.commit()
    with argo.following_folders(repository):
        for folder in sorted((GITOPS / "pipelines").iterdir()):
            name = f"pipelines-{folder.name}"
            until("it is there", lambda name=name: argo.plane.admin.get(APPLICATIONS, HOME, name))  # type: ignore[misc]
            there = World(world.plane, world.operators, folder.name)
            with argo.watched(name) as application:
                state = State(revision, SYNCED, HEALTHY)
                until("it is applied", lambda: application.state().sync == SYNCED)
                until("it is healthy", lambda: there.ready(folder.name) and application.state() == state)  # noqa: B023


def test_a_component_without_a_name_can_not_be_compared(world: World, argo: ArgoCd, repository: Repository) -> None:
    """It is applied and serves, but Argo CD is lost from then on; comparing on the server helps, or the name."""
    world.operators.start()
    repository.pipelines({"llama": {"components": [{"engine": "mocker"}]}})
    with argo.following(world.namespace, repository, FOLDER, world.namespace) as application:
        until("it is applied", lambda: world.admin.get(PIPELINES, world.namespace, "llama"))
        until("it serves", lambda: world.ready() and application.state().health == HEALTHY)
        until("it says so", lambda: 'omits key field "name"' in application.complaints())
        assert application.state().sync == "Unknown"
        application.compares_on_the_server(yes=True)
        revision = repository.pipelines({"llama": {"components": [{"engine": "mocker", "replicas": 3}]}})
        until("it compares", lambda: world.ready() and application.state() == State(revision, SYNCED, HEALTHY))
        rests(world, application, revision)
        application.compares_on_the_server(yes=False)
        until("it is lost again", lambda: application.state().sync == "Unknown")
        named = repository.pipelines({"llama": {"components": [{"name": "worker", "engine": "mocker"}]}})
        until("the name helps", lambda: world.ready() and application.state() == State(named, SYNCED, HEALTHY))


def test_kubectl_scale_stays(world: World, argo: ArgoCd, repository: Repository) -> None:
    """It sets a field that the sample leaves to others: no difference, and the next commit leaves it alone, too."""
    world.operators.start()
    component: Object = {"name": "worker", "engine": "mocker"}
    revision = repository.pipelines({"llama": {"replicas": 1, "components": [component]}})
    with argo.following(world.namespace, repository, FOLDER, world.namespace) as application:
        until("it is applied", lambda: application.state().sync == SYNCED)
        until("it is healthy", lambda: world.ready() and application.state() == State(revision, SYNCED, HEALTHY))
        mark, seen = world.plane.mark(), len(application.states())
        world.plane.kubectl("scale", "--replicas=3", "dynamopipelines/llama", "-n", world.namespace)
        rests(world, application, revision)
        assert argo.writes(mark) == []
        assert {state.sync for state in application.states(seen)} <= {SYNCED}
        more = repository.pipelines({"llama": {"replicas": 1, "components": [component], "restart": "now"}})
        until("it is healthy", lambda: world.ready() and application.state() == State(more, SYNCED, HEALTHY))
        assert (world.live()["spec"]["replicas"], world.live()["spec"]["restart"]) == (3, "now")


def served(world: World, application: Application, revision: str, wanted: Object) -> None:
    """Argo CD has it applied, and says Progressing for as long as no kubelet does its part; then it is Healthy."""
    healthy = State(revision, SYNCED, HEALTHY)
    until("it is applied", lambda: application.state() == State(revision, SYNCED, PROGRESSING))
    time.sleep(HELD_SECONDS)
    assert application.state() == State(revision, SYNCED, PROGRESSING)
    assert healthy not in application.states()
    until("it is healthy", lambda: world.ready() and application.state() == healthy)
    assert lacking(world, wanted) == []


def refused(world: World, application: Application, repository: Repository) -> None:
    """A template that the API server can't type: Degraded, in the operator's words."""
    template = {"spec": {"noSuchField": 1}}
    revision = repository.pipelines({"llama": spec("b", replicas=3, podTemplate=template)})
    until("it is degraded", lambda: application.state() == State(revision, SYNCED, DEGRADED))
    assert application.message().startswith("AdmissionRejected: ")
    assert "noSuchField" in application.message()
    assert State(revision, SYNCED, HEALTHY) not in application.states()


def without_image(world: World, application: Application, repository: Repository) -> None:
    """Kubelets that don't get it: Progressing, with the pod's name; after a while still."""
    (container,) = world.items(SETS_OF_WORKERS)[0]["spec"]["template"]["spec"]["containers"]
    template = {"spec": {"containers": [{"name": container["name"], "image": ABSENT}]}}
    revision = repository.pipelines({"llama": spec("b", replicas=3, podTemplate=template)})
    until("Argo CD says so", lambda: image_pull_fails(world) and "ImagePullBackOff" in application.message())
    time.sleep(HELD_SECONDS)
    assert application.state() == State(revision, SYNCED, PROGRESSING)
    assert "pod llama-worker-" in application.message()
    assert State(revision, SYNCED, HEALTHY) not in application.states()


def image_pull_fails(world: World) -> bool:
    """The kubelets' part: every pod of that image waits; whether there are any."""
    found = [item for item in world.items(PODS) if item["spec"]["containers"][0]["image"] == ABSENT]
    for pod in found:
        (container,) = pod["spec"]["containers"]
        waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{ABSENT}"'}
        said = {
            "name": container["name"], "image": ABSENT, "imageID": "", "ready": False, "restartCount": 0,
            "state": {"waiting": waiting},
        }  # fmt: skip
        status = {
            "phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [said],
        }  # fmt: skip
        if not pod.get("status", {}).get("containerStatuses"):
            world.admin.merge(PODS, world.namespace, pod["metadata"]["name"], {"status": status}, "status")
    return bool(found)


def pruned(world: World, application: Application, repository: Repository) -> None:
    """One of two goes from git, and with it all that it had; the other one serves on."""
    both = repository.pipelines({"llama": spec("c"), "other": spec("c")})
    until("both are applied", lambda: application.state() == State(both, SYNCED, PROGRESSING))
    until("both are ready", lambda: world.ready() and world.ready("other"))
    until("Argo CD says so", lambda: application.state() == State(both, SYNCED, HEALTHY))
    assert world.children("other")
    left = repository.pipelines({"llama": spec("c")})
    gone(world, "other")
    until("it is at rest", lambda: application.state() == State(left, SYNCED, HEALTHY))
    assert lacking(world, spec("c")) == []


def emptied(world: World, application: Application, repository: Repository) -> None:
    """The last one isn't pruned, and the application says why."""
    revision = repository.without_pipelines()
    until("it says so", lambda: "wipe out all resources" in application.complaints())
    time.sleep(HELD_SECONDS)
    assert application.state() == State(revision, OUT_OF_SYNC, HEALTHY)
    assert world.ready()


def deleted(world: World, application: Application) -> None:
    """With Argo CD's finalizer an application takes its pipelines along."""
    application.delete_with_all()
    gone(world, "llama")
    until("no pod is left", lambda: not world.items(PODS))


def gone(world: World, name: str) -> None:
    """The pipeline and all that it had."""
    until("it is gone", lambda: world.admin.get(PIPELINES, world.namespace, name) is None)
    until("all that it had is gone", lambda: not world.children(name))


def child_by_hand(world: World, application: Application, revision: str) -> None:
    """Somebody scales a set of workers: one write of the operator, none of Argo CD, to which it is no difference."""
    mark, seen = world.plane.mark(), len(application.states())
    name = world.items(SETS_OF_WORKERS)[0]["metadata"]["name"]
    world.admin.merge(SETS_OF_WORKERS, world.namespace, name, {"spec": {"replicas": 5}})
    until("it is put back", lambda: world.get(SETS_OF_WORKERS, name)["spec"]["replicas"] == 2)
    rests(world, application, revision)
    writes = [write for write in world.writes(mark) if "statefulsets" in write]
    done = f"patch statefulsets/{name} 200"
    # One that met a write of somebody else's, such as of the set's own status, is tried again.
    assert writes in ([done], [f"patch statefulsets/{name} 409", done])
    assert application.argo.writes(mark) == []
    assert {state.sync for state in application.states(seen)} <= {SYNCED}


def pipeline_by_hand(world: World, application: Application, revision: str) -> None:
    """Somebody edits what git has: one write of Argo CD, and the operator follows to what it was."""
    mark, component = world.plane.mark(), world.live()["spec"]["components"][0]
    changed = {"spec": {"components": [{**component, "replicas": 4}]}}
    world.admin.merge(PIPELINES, world.namespace, "llama", changed)
    until("it is put back", lambda: world.live()["spec"]["components"][0]["replicas"] == 2)
    rests(world, application, revision)
    assert application.argo.writes(mark) == ["patch dynamopipelines/llama"]
    assert lacking(world, spec("a")) == []


def rests(world: World, application: Application, revision: str) -> None:
    """Healthy again, compared twice since, and the operator has nothing more to write."""
    state = State(revision, SYNCED, HEALTHY)
    until("it is healthy", lambda: world.ready() and application.state() == state)
    time.sleep(HELD_SECONDS)
    world.settle()
    assert application.state() == state
