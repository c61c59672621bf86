"""Who waits for a pipeline is never told too early: `kubectl wait`, kstatus and Ready, against pods and templates."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from e2e.apiserver.client import Object, until
from e2e.apiserver.world import Note, World
from e2e.kind.binaries import build_kstatus
from e2e.kind.places import Places
from tests.gitops.kstatus import CURRENT, FAILED, compute

from dynamo.operator.kube.resources import PIPELINES, PODS, resource_of

DEPLOYMENTS, SETS = resource_of("Deployment"), resource_of("StatefulSet")
PLAY_SECONDS = 0.7
"""Pods need a while, so that every state in between is seen."""
MOCKER: Object = {"engine": "mocker", "replicas": 2}


def turned(frontend: str, worker: str, **component: object) -> Object:
    """A spec whose templates say which they are."""
    template = {"spec": {"containers": [{"name": "frontend", "env": [{"name": "TURN", "value": frontend}]}]}}
    env = [{"name": "TURN", "value": worker}]
    return {"frontend": {"podTemplate": template}, "components": [{**MOCKER, "env": env, **component}]}


STAGES = (
    turned("a", "a"),
    turned("b", "a"),
    turned("b", "b"),
    turned("c", "c", replicas=3),
    turned("c", "c", replicas=1),
    turned("b", "b"),
)
"""Creation, another frontend, another worker, both and one more, fewer, and back."""


def test_nobody_is_told_too_early(world: World, note: Note) -> None:
    """From a look at the status on, what is served is of this spec, whole, and nothing older is left."""
    world.operators.start()
    seen = 0
    for spec in STAGES:
        world.pipeline(spec=spec)
        process = waiting(world)
        try:
            seen += watched(world, spec, process)
        finally:
            process.kill()
            process.wait(10)
    note("looks at the status, of six stages", seen)
    assert seen > 10 * len(STAGES)


def test_what_only_an_edit_helps_is_failed(world: World, tmp_path: Path) -> None:
    """kstatus itself says so of the live object, and `Current` once it is mended."""
    world.operators.start()
    world.pipeline(spec={"components": [{**MOCKER, "podTemplate": {"spec": {"noSuchField": 1}}}]})
    until("it is stalled", lambda: world.condition("Stalled"))
    assert (compute(world.live()), said_by_kstatus(world, tmp_path)) == (FAILED, FAILED)
    world.pipeline(spec={"components": [MOCKER]})
    world.until_ready()
    assert (compute(world.live()), said_by_kstatus(world, tmp_path)) == (CURRENT, CURRENT)


def waiting(world: World) -> subprocess.Popen[bytes]:
    """`kubectl wait`, begun right after an edit."""
    kubeconfig = world.plane.kubeconfig("waiting", world.plane.admin_token)
    where = [f"--kubeconfig={kubeconfig}", "-n", world.namespace, "dynamopipeline/llama", "--timeout=60s"]
    return subprocess.Popen([world.plane.binary("kubectl"), "wait", "--for=condition=Ready", *where])


def watched(world: World, spec: Object, process: subprocess.Popen[bytes]) -> int:
    """Until `kubectl wait` has ended; how many checks that took."""
    checks, played, generation = 0, time.monotonic(), world.live()["metadata"]["generation"]
    while (ended := process.poll()) is None or compute(world.live()) != CURRENT:
        live = world.live()
        conditions: list[Object] = live.get("status", {}).get("conditions", [])
        ready: Object = next((condition for condition in conditions if condition["type"] == "Ready"), {})
        is_ready = ready.get("status") == "True" and ready.get("observedGeneration") == generation
        # A status is read before the children are: what is true of it then stays so.
        if is_ready or (ready and compute(live) == CURRENT):
            assert lacking(world, spec) == []
        if time.monotonic() - played > PLAY_SECONDS:
            world.admin.play(world.namespace)
            played = time.monotonic()
        checks += 1
        assert ended in (None, 0)
    assert ended == 0
    assert lacking(world, spec) == []
    return checks


def lacking(world: World, spec: Object) -> list[str]:
    """What of the spec isn't served, or of another is left, by the children themselves."""
    component = spec["components"][0]
    frontend = world.get(DEPLOYMENTS, "llama-frontend")
    status, sets = frontend.get("status", {}), world.items(SETS)
    workers = [item for item in world.items(PODS) if owner(item) == "StatefulSet"]
    checks = {
        "the frontends' template": turn(frontend) == turn_of(spec),
        "the frontends' own generation": status.get("observedGeneration") == frontend["metadata"]["generation"],
        "frontends": status.get("updatedReplicas") == status.get("readyReplicas") == status.get("replicas") == 1,
        "one set of workers": [turn(one) for one in sets] == [component["env"][0]["value"]],
        "workers": [is_ready(worker) for worker in workers] == [True] * component["replicas"],
    }
    return [what for what, holds in checks.items() if not holds]


def turn_of(spec: Object) -> str:
    """Of the frontends that it asks for."""
    (container,) = spec["frontend"]["podTemplate"]["spec"]["containers"]
    return str(container["env"][0]["value"])


def turn(workload: Object) -> str:
    """Of a Deployment's or a StatefulSet's template."""
    env = workload["spec"]["template"]["spec"]["containers"][0]["env"]
    return next((str(one["value"]) for one in env if one["name"] == "TURN"), "")


def owner(pod: Object) -> str:
    """The kind of what made it."""
    return next((str(reference["kind"]) for reference in pod["metadata"].get("ownerReferences", [])), "")


def is_ready(pod: Object) -> bool:
    """As its kubelet says."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any((condition["type"], condition["status"]) == ("Ready", "True") for condition in conditions)


def said_by_kstatus(world: World, folder: Path) -> str:
    """The program's own verdict."""
    path = folder / "live.yaml"
    path.write_text(json.dumps({"apiVersion": PIPELINES.api_version, "kind": PIPELINES.kind, **world.live()}))
    program = build_kstatus(Places.of(os.environ))
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()[-1]
