"""Pods that the real scheduler finds no node for: its own words, until there is one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.apiserver.client import Object, until
from e2e.apiserver.plane import Plane
from e2e.apiserver.world import World

from dynamo.operator.kube.resources import PODS, Resource

NODES = Resource("v1", "Node", "nodes")
TEMPLATES = Resource("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
CLAIMS = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
NODE = "only"
MOCKER: Object = {"engine": "mocker", "replicas": 1}


def test_unschedulable_and_then_scheduled(world: World) -> None:
    """No node: the condition names a pod and has the scheduler's sentence; with one, it is served by itself."""
    world.operators.start()
    with scheduler(world.plane):
        world.pipeline(spec={"components": [MOCKER]})
        until("the condition says so", lambda: world.condition().get("reason") == "Unschedulable")
        assert "no nodes available to schedule pods" in world.condition()["message"]
        assert "pod llama-" in world.condition()["message"]
        assert world.condition("Stalled") == {}
        with node(world):
            until("it is ready", lambda: served(world))


def test_a_claim_that_is_never_bound(world: World) -> None:
    """Nobody provides the volume: the scheduler says so, and the claim's pod is named; the frontend runs."""
    world.operators.start()
    with scheduler(world.plane), node(world):
        world.pipeline(spec={"components": [MOCKER], "model": {"cache": {"size": "1Gi"}}})
        until("the condition says so", lambda: unbound(world))
        assert "pod llama-worker-" in world.condition("WorkersReady")["message"]
        assert world.condition("WorkersReady")["reason"] == "Unschedulable"
        until("the frontend runs", lambda: frontend_runs(world))


def test_devices_that_nobody_provides(world: World) -> None:
    """Dynamic resource allocation: a template that is missing is named, then the claim that is made and waits."""
    world.operators.start()
    claims = [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}]
    with scheduler(world.plane), node(world):
        world.pipeline(spec={"components": [{**MOCKER, "resourceClaims": claims}]})
        until("the template is named", lambda: says(world, "it waits for a ResourceClaim of template one-gpu"))
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        head = {"apiVersion": TEMPLATES.api_version, "kind": TEMPLATES.kind, "metadata": {"name": "one-gpu"}}
        world.admin.ask("POST", TEMPLATES.path(world.namespace), {**head, "spec": spec})
        until("the claim is made", lambda: len(world.items(CLAIMS)) == 1)
        (claim,) = world.items(CLAIMS)
        until("the claim is named", lambda: says(world, f"it waits for ResourceClaim {claim['metadata']['name']}"))
        assert world.condition("WorkersReady")["reason"] == "Unschedulable"


def says(world: World, words: str) -> bool:
    """Whether the workers' condition has these words."""
    return words in world.condition("WorkersReady").get("message", "")


def unbound(world: World) -> bool:
    """Whether workers wait for the claim, by the status."""
    return "unbound immediate PersistentVolumeClaims" in world.condition("WorkersReady").get("message", "")


def frontend_runs(world: World) -> bool:
    """With its kubelet played."""
    return not served(world) and world.condition("FrontendReady").get("status") == "True"


def served(world: World) -> bool:
    """Whether the pipeline is ready, with a kubelet that runs what is on the node."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for pod in world.items(PODS):
        conditions: list[Object] = pod.get("status", {}).get("conditions", [])
        if pod["spec"].get("nodeName") and not any(condition["type"] == "Ready" for condition in conditions):
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
            status = {"phase": "Running", "conditions": [*conditions, ready]}
            world.admin.merge(PODS, world.namespace, pod["metadata"]["name"], {"status": status}, "status")
    return bool(world.condition().get("status") == "True")


@contextmanager
def scheduler(plane: Plane) -> Iterator[None]:
    """The real one, while this lasts: other tests' pods need no node."""
    with running(plane, "kube-scheduler", "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0"):
        yield


@contextmanager
def running(plane: Plane, name: str, *flags: str) -> Iterator[None]:
    """One more program of the control plane."""
    command = [str(plane.binary(name)), f"--kubeconfig={plane.kubeconfig(name, plane.admin_token)}", *flags]
    with (plane.folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def node(world: World) -> Iterator[None]:
    """One that is ready and has room; nobody runs there, so that at the end its pods are removed by force."""
    room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": status}
    world.admin.ask("POST", NODES.path(), body)
    # Admission taints a new node until a controller that isn't here finds it ready.
    world.admin.merge(NODES, None, NODE, {"spec": {"taints": None}})
    try:
        yield
    finally:
        world.admin.delete(NODES, None, NODE)
        for pod in world.items(PODS):
            world.admin.code("DELETE", f"{PODS.path(world.namespace, pod['metadata']['name'])}?gracePeriodSeconds=0")
