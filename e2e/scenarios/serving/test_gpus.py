"""Devices: requests and limits, a place on nodes that have them, and the scheduler's words where none has."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.cluster.cluster import Cluster, wait_for
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, pipeline, say, workers

NAME = "devices"
GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"
IMAGE = "dynamo-pipelines/worker:0.1.0"
SAY_SECONDS = 180


@pytest.fixture(autouse=True)
def gpus(cluster: Cluster) -> None:
    """kind's nodes are told to have GPUs; on another cluster there must be some."""
    found = [int(node["status"]["allocatable"].get(GPU, 0)) for node in cluster.list("v1/Node")]
    assert sum(found) >= 8, f"these scenarios need nodes with {GPU} together 8 at least; there are {found}"


def test_gpus(namespace: Namespace) -> None:
    """tensorParallelSize asks for as many GPUs per worker, and the workers land where these are."""
    namespace.apply(pipeline(NAME, {"engine": "mocker", "tensorParallelSize": 2, "accelerator": {"count": 2}}))
    namespace.wait_ready(NAME)
    (pod,) = workers(namespace, NAME)
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"][GPU] == resources["limits"][GPU] == "2"
    node = namespace.cluster.get("v1/Node", pod["spec"]["nodeName"])
    assert node is not None
    assert int(node["status"]["allocatable"][GPU]) >= 2
    assert "--tensor-parallel-size" in " ".join(pod["spec"]["containers"][0]["args"])
    with asking(namespace, NAME) as client:
        assert say(client, NAME)


def test_a_gpu_engine_asks_without_being_told(namespace: Namespace) -> None:
    """vLLM with tensorParallelSize 4, in an image of the pipeline's: four GPUs of one node, and memory to share."""
    worker: Object = {"engine": "vllm", "tensorParallelSize": 4, "image": IMAGE}
    namespace.apply(pipeline(NAME, worker, model={"source": "hf://org/repo", "name": "m"}))
    (pod,) = wait_for("a worker's pod", lambda: workers(namespace, NAME), SAY_SECONDS)
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"][GPU] == "4"
    assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]
    wait_for("a node takes it", lambda: workers(namespace, NAME)[0]["spec"].get("nodeName"), SAY_SECONDS)


def test_an_engine_without_an_image_is_refused(namespace: Namespace) -> None:
    """The platform has none for vLLM: the condition names the value to set, and no pod crashes in another image."""
    namespace.apply(pipeline(NAME, {"engine": "vllm"}, model={"source": "hf://org/repo", "name": "m"}))
    condition = wait_for("it says why", lambda: _because(namespace, "MissingImage"), SAY_SECONDS)
    assert "pipelines.images.workers.vllm" in condition["message"]
    assert workers(namespace, NAME) == []


@pytest.mark.parametrize("resource", [MIG, "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe"])
def test_devices_of_others(namespace: Namespace, resource: str) -> None:
    """MIG slices and other vendors' devices are asked of the scheduler and of the kubelet, and granted."""
    with _capacity(namespace.cluster, resource, 1):
        namespace.apply(pipeline(NAME, {"engine": "mocker", "accelerator": {"resource": resource, "count": 1}}))
        namespace.wait_ready(NAME)
        (pod,) = workers(namespace, NAME)
        assert pod["spec"]["containers"][0]["resources"]["limits"][resource] == "1"
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def test_a_pod_as_its_node_wants_it(namespace: Namespace, runtime_class: str) -> None:
    """A runtime class, memory to share, a claim that is there already: the process finds them."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    namespace.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "hub"}, "spec": claim})
    worker: Object = {"engine": "mocker", "runtimeClassName": runtime_class, "sharedMemory": "96Mi"}
    namespace.apply(pipeline(NAME, worker, model={"name": NAME, "cache": {"claimName": "hub"}}))
    namespace.wait_ready(NAME)
    (pod,) = workers(namespace, NAME)
    assert pod["spec"]["runtimeClassName"] == runtime_class
    shell = ["exec", pod["metadata"]["name"], "-c", "worker", "--", "python3", "-c"]
    size = "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize >> 20)"
    assert namespace.kubectl(*shell, size).strip() == "96"
    namespace.kubectl(*shell, "open('/var/cache/dynamo/kept', 'w').close()")
    bound = namespace.get("v1/PersistentVolumeClaim", "hub")
    assert bound is not None
    assert bound["status"]["phase"] == "Bound"


@pytest.fixture
def runtime_class(cluster: Cluster) -> Iterator[str]:
    """A RuntimeClass whose handler every containerd has."""
    name = f"e2e-{secrets.token_hex(4)}"
    cluster.apply(
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runc"}
    )
    yield name
    cluster.kubectl("delete", "runtimeclass", name)


def test_claimed_devices(namespace: Namespace) -> None:
    """Dynamic resource allocation, without a driver: the claim is made, the pod waits, and the status names both."""
    device_class = f"e2e-{secrets.token_hex(4)}.example.com"
    worker: Object = {"engine": "mocker", "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "one-gpu"}]}
    namespace.apply(pipeline(NAME, worker))
    template_missing = wait_for("it says why", lambda: _saying(namespace, "template one-gpu"), SAY_SECONDS)
    assert template_missing["status"] == "False"
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    namespace.apply(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one-gpu"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
    )
    (claim,) = wait_for("its claim", lambda: namespace.list("resource.k8s.io/v1/ResourceClaim"), SAY_SECONDS)
    wait_for("it names it", lambda: _saying(namespace, f"ResourceClaim {claim['metadata']['name']}"), SAY_SECONDS)
    (pod,) = workers(namespace, NAME)
    assert claim["metadata"]["ownerReferences"][0]["name"] == pod["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert not pod["spec"].get("nodeName")


def _saying(namespace: Namespace, words: str) -> dict[str, str] | None:
    condition = namespace.condition(NAME)
    return condition if words in condition.get("message", "") else None


def test_gangs(namespace: Namespace) -> None:
    """What Kueue and Volcano read stands on sets and pods; their schedulers aren't here."""
    worker: Object = {
        "engine": "vllm",
        "image": IMAGE,
        "nodes": 2,
        "tensorParallelSize": 2,
        "queueName": "gpus",
        "gangScheduling": True,
        "schedulerName": "volcano",
    }
    namespace.apply(pipeline(NAME, worker, model={"source": "hf://org/repo", "name": "m"}))
    wait_for("both pods", lambda: len(workers(namespace, NAME)) == 2, SAY_SECONDS)
    pods = workers(namespace, NAME)
    (stateful_set,) = namespace.list("apps/v1/StatefulSet")
    for item in (stateful_set, *pods):
        assert item["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        assert item["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "2"
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"volcano"}
    assert not any(pod["spec"].get("nodeName") for pod in pods), "no such scheduler has looked at them"


def test_placement(namespace: Namespace) -> None:
    """The typed fields reach a pod that runs: a MIG slice, a tainted node's toleration, labels, a queue, patience."""
    worker: Object = {
        "engine": "mocker",
        "accelerator": {"resource": MIG, "count": 1},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "queueName": "gpus",
        "startupTimeoutSeconds": 3600,
    }
    with _capacity(namespace.cluster, MIG, 1):
        namespace.apply(pipeline(NAME, worker))
        namespace.wait_ready(NAME)
        (pod,) = workers(namespace, NAME)
        assert pod["spec"]["containers"][0]["startupProbe"]["failureThreshold"] == 3600
        assert worker["tolerations"][0] in pod["spec"]["tolerations"]
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def test_unschedulable(namespace: Namespace) -> None:
    """No node has the devices: the condition has the scheduler's text; when one gets them, the worker starts."""
    resource = f"e2e-{secrets.token_hex(4)}.example.com/gpu"
    namespace.apply(pipeline(NAME, {"engine": "mocker", "accelerator": {"resource": resource, "count": 3}}))
    condition = wait_for("it says why", lambda: _because(namespace, "Unschedulable"), SAY_SECONDS)
    (pod,) = workers(namespace, NAME)
    assert f"Insufficient {resource}" in condition["message"]
    assert pod["metadata"]["name"] in condition["message"]
    assert namespace.kubectl("get", "dp", NAME, "--no-headers").split()[1:3] == ["False", "Unschedulable"]
    with _capacity(namespace.cluster, resource, 3):
        namespace.wait_ready(NAME)
        (same,) = workers(namespace, NAME)
        assert same["metadata"]["uid"] == pod["metadata"]["uid"]
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


def _because(namespace: Namespace, reason: str) -> dict[str, str] | None:
    condition = namespace.condition(NAME)
    return condition if condition.get("reason") == reason else None


@contextmanager
def _capacity(cluster: Cluster, resource: str, count: int) -> Iterator[None]:
    """A node has so many of a device while the block runs."""
    nodes = [node for node in cluster.list("v1/Node") if not node["spec"].get("taints")]
    patch = ["patch", "node", nodes[0]["metadata"]["name"], "--subresource=status", "--type=json"]
    paths = [f"/status/{part}/{resource.replace('/', '~1')}" for part in ("capacity", "allocatable")]
    add = ",".join(f'{{"op":"add","path":"{path}","value":"{count}"}}' for path in paths)
    cluster.kubectl(*patch, f"-p=[{add}]")
    try:
        yield
    finally:
        remove = ",".join(f'{{"op":"remove","path":"{path}"}}' for path in paths)
        cluster.kubectl(*patch, f"-p=[{remove}]")
