"""Typed fields of where pods run: in the pod, under the podTemplate, within the policy; and whose image it is."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.pipelines import PLACEMENT, Spec, pipeline
from tests.operator.rendered import CLUSTER, CLUSTER_SETTINGS, IMAGES, main_container, of_kind, render

from dynamo.operator.manifests.context import ClusterSettings, Manifest, MissingImageError, RenderError
from dynamo.operator.plan.plan import plan

MODEL: Spec = {"source": "hf://org/repo"}


def stateful_set(cluster: ClusterSettings = CLUSTER_SETTINGS, model: Spec = MODEL, **component: Any) -> Manifest:
    return of_kind(render(pipeline({"components": [component], "model": model}), cluster), "StatefulSet")


def pod(**component: Any) -> Manifest:
    spec: Manifest = stateful_set(**component)["spec"]["template"]["spec"]
    return spec


def group(**component: Any) -> Manifest:
    return stateful_set(engine="vllm", nodes=2, tensorParallelSize=4, **component)


def test_fields_of_a_pod_are_kubernetes_own() -> None:
    """Those that core/v1 has by the same name arrive as they are; a template of the user's still wins."""
    spec = pod(engine="vllm", nodes=2, tensorParallelSize=4, **PLACEMENT)
    names = ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "priorityClassName", "schedulerName")
    assert {name: spec[name] for name in names} == {name: PLACEMENT[name] for name in names}
    patch = {"spec": {"priorityClassName": "low", "tolerations": []}}
    patched = pod(engine="mocker", podTemplate=patch, priorityClassName="high", tolerations=PLACEMENT["tolerations"])
    assert (patched["priorityClassName"], patched["tolerations"]) == ("low", [])


def test_a_spread_without_a_selector_counts_the_component() -> None:
    """It takes the place of ours; a selector of the user's stays."""
    zone = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    (spread,) = pod(engine="mocker", topologySpreadConstraints=[zone])["topologySpreadConstraints"]
    labels = {"dynamo.dev/pipeline": "llama", "dynamo.dev/component": "worker"}
    assert spread == {**zone, "labelSelector": {"matchLabels": labels}}
    own = {**zone, "labelSelector": {"matchLabels": {"a": "b"}}}
    assert pod(engine="mocker", topologySpreadConstraints=[own])["topologySpreadConstraints"] == [own]
    assert pod(engine="mocker", topologySpreadConstraints=[])["topologySpreadConstraints"] == []


def test_claims_take_the_place_of_devices() -> None:
    """The pod names the claims, the container which of their requests; no plugin is asked, memory is still shared."""
    spec = pod(engine="vllm", tensorParallelSize=2, resourceClaims=PLACEMENT["resourceClaims"])
    assert spec["resourceClaims"] == [
        {"name": "link", "resourceClaimName": "fabric"},
        {"name": "gpus", "resourceClaimTemplateName": "h100"},
    ]
    resources = spec["containers"][0]["resources"]
    assert resources["claims"] == [{"name": "link"}, {"name": "gpus", "request": "gpu"}]
    assert "nvidia.com/gpu" not in resources.get("limits", {})
    assert "/dev/shm" in {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    both = pod(engine="vllm", accelerator={"count": 1}, resourceClaims=PLACEMENT["resourceClaims"])
    assert both["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "amd.com/gpu", "gpu.intel.com/i915"])
def test_other_devices(resource: str) -> None:
    """A MIG slice and other vendors' devices are requested as such."""
    (container,) = pod(engine="vllm", tensorParallelSize=2, accelerator={"resource": resource})["containers"]
    assert container["resources"]["limits"] == {resource: "2"}


def test_queues_and_gangs() -> None:
    """Kueue reads the label of set and pods, Volcano the annotation; selectors, which can't change, know neither."""
    found = group(queueName="gpus", gangScheduling=True)
    for metadata in (found["metadata"], found["spec"]["template"]["metadata"]):
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        assert metadata["annotations"]["scheduling.volcano.sh/group-min-member"] == "2"
    assert "kueue.x-k8s.io/queue-name" not in found["spec"]["selector"]["matchLabels"]
    assert "annotations" not in group()["spec"]["template"]["metadata"]


def test_patience_with_a_start() -> None:
    """Ten minutes to import, or as long as is asked; a load that follows is limited by no probe."""
    assert pod(engine="mocker")["containers"][0]["startupProbe"]["failureThreshold"] == 600
    probe = pod(engine="mocker", startupTimeoutSeconds=3600)["containers"][0]["startupProbe"]
    assert (probe["failureThreshold"], probe["periodSeconds"]) == (3600, 1)


def test_a_claim_of_yours_is_the_cache() -> None:
    """It is mounted, and none is made: nothing of it goes with the pipeline."""
    spec: Spec = {"components": [{"engine": "llamacpp"}], "model": MODEL | {"cache": {"claimName": "hub"}}}
    manifests = render(pipeline(spec))
    assert "PersistentVolumeClaim" not in {m["kind"] for m in manifests}
    volumes = of_kind(manifests, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "hub"}} in volumes


def test_the_image_of_an_engine() -> None:
    """A pipeline's own goes first, in the loader too, then the platform's for the engine."""
    assert main_container(stateful_set(engine="vllm"))["image"] == IMAGES["vllm"]
    assert main_container(stateful_set(engine="mocker"))["image"] == IMAGES["default"]
    own = stateful_set(engine="vllm", image="lab/vllm:1")["spec"]["template"]["spec"]
    assert {c["image"] for c in own["containers"] + own["initContainers"]} == {"lab/vllm:1"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llamacpp", "mistralrs", "openai"])
def test_no_engine_runs_in_an_image_without_it(engine: str) -> None:
    """The default image is refused for it, by the value to set; an image in the pipeline will do, in a template too."""
    bare = ClusterSettings("f:1", {"default": "w:1"})
    with pytest.raises(MissingImageError, match=rf"components\[0\]: .*set pipelines\.images\.workers\.{engine} in"):
        stateful_set(bare, engine=engine)
    template = {"spec": {"containers": [{"name": "worker", "image": "lab/own:1"}]}}
    # Of engine openai the image is that of the server beside the worker.
    named: list[Spec] = [] if engine == "openai" else [{"image": "lab/own:1"}]
    for own in (*named, {"podTemplate": template}):
        spec = stateful_set(bare, engine=engine, **own)["spec"]["template"]["spec"]
        assert {c["image"] for c in spec["containers"] + spec["initContainers"]} == {"lab/own:1"}
    malformed: Spec
    for malformed in ({"spec": []}, {"spec": {"containers": {}}}, {"spec": {"containers": [1]}}):
        with pytest.raises(RenderError):
            stateful_set(bare, engine=engine, podTemplate=malformed)


def test_new_fields_move_the_revision_only_where_they_are_set() -> None:
    """Each of them is a rollout; those that are left out change nothing."""

    def revision(**component: Any) -> str:
        found = pipeline({"components": [{"engine": "vllm", "nodes": 2, "tensorParallelSize": 2, **component}],
                          "model": MODEL})  # fmt: skip
        return plan(found, CLUSTER).workers[0].revision

    assert len({revision(), *(revision(**{name: value}) for name, value in PLACEMENT.items())}) == len(PLACEMENT) + 1
