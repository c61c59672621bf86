"""Manifests: golden files, what the API server's schemas say, and what holds for every valid pipeline."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from tests.operator import kubernetes_schemas
from tests.operator.golden import Golden
from tests.operator.pipelines import FULL, ROUTED, SMALLEST, UID, Spec, pipeline, valid_pipelines
from tests.operator.rendered import (
    CLUSTER,
    CLUSTER_SETTINGS,
    SECURED,
    env_of,
    main_container,
    of_kind,
    pod_templates,
    render,
    worker,
)

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.object_store import trimmed
from dynamo.operator.codegen.yaml_text import to_yaml
from dynamo.operator.kube.resources import resource_of
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings, Manifest, RenderContext, RenderError
from dynamo.operator.manifests.frontend import frontend_url
from dynamo.operator.manifests.render import with_images
from dynamo.operator.manifests.workers import POD_NAME
from dynamo.operator.plan.plan import plan
from dynamo.runtime import config
from dynamo.runtime.config import ETCD_FILES, NATS_FILES
from dynamo.runtime.process.settings import parse

GOLDEN = Path(__file__).parent / "golden"
MOST_WRITES = 8
"""Of a pipeline with one component; the reconciler adds a Secret, and ten are allowed."""


@pytest.mark.parametrize(
    ("golden", "spec", "cluster"),
    [
        (Golden(GOLDEN, "smallest"), SMALLEST, CLUSTER_SETTINGS),
        (Golden(GOLDEN, "full"), FULL, CLUSTER_SETTINGS),
        (Golden(GOLDEN, "secured", of="smallest"), SMALLEST, SECURED),
        (Golden(GOLDEN, "routed", of="smallest"), ROUTED, CLUSTER_SETTINGS),
    ],
    ids=["smallest", "full", "secured", "routed"],
)
def test_golden(golden: Golden, spec: Spec, cluster: ClusterSettings) -> None:
    """What users get, word for word; `GOLDEN=1` writes the files again."""
    assert golden.holds(to_yaml(render(pipeline(spec), cluster)))


@settings(max_examples=60, deadline=None)
@given(valid_pipelines)
def test_every_valid_pipeline_renders(found: DynamoPipeline) -> None:
    """Twice the same, owned, labelled, named within the limits, no two of one name."""
    rendered = render(found)
    assert json.dumps(rendered) == json.dumps(render(found))
    assert to_yaml(rendered)
    keys = [(m["kind"], m["metadata"]["name"]) for m in rendered]
    assert len(set(keys)) == len(keys)
    for manifest in rendered:
        check_head(manifest, found)
    for template in pod_templates(rendered):
        check_restricted(template)


@settings(max_examples=5, deadline=None)
@given(valid_pipelines)
@example(pipeline(FULL))
def test_kubernetes_own_schemas_agree(found: DynamoPipeline) -> None:
    """No field that doesn't exist, none of the wrong type, none missing (few examples: these schemas load slowly)."""
    for manifest in render(found):
        if manifest["kind"] != "HTTPRoute":  # of the Gateway API, which has its own schemas
            kubernetes_schemas.validate(manifest, "1.34")


def check_head(manifest: Manifest, found: DynamoPipeline) -> None:
    metadata = manifest["metadata"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["name"], owner["controller"]) == (UID, found.name, True)
    assert metadata["labels"][naming.PIPELINE] == found.name
    assert metadata["labels"]["app.kubernetes.io/managed-by"] == naming.MANAGER
    assert "app.kubernetes.io/instance" not in metadata["labels"], "Argo CD would prune it"
    assert metadata["namespace"] == "serving"
    assert len(metadata["name"]) <= (52 if manifest["kind"] == "StatefulSet" else 63)
    assert all(len(value) <= 63 for value in metadata["labels"].values())
    assert metadata["annotations"][naming.INTENT]


def check_restricted(template: Manifest) -> None:
    """Pod Security Standard `restricted`, for the containers that are ours."""
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        if container["name"] in ("frontend", "worker", "model"):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])


@settings(max_examples=60, deadline=None)
@given(valid_pipelines)
def test_selectors_match_pods_and_mounts_match_volumes(found: DynamoPipeline) -> None:
    """A Service, policy or budget that selects nothing, or a mount without volume, would fail in the cluster only."""
    rendered = render(found)
    for manifest in rendered:
        if manifest["kind"] in ("Deployment", "StatefulSet"):
            spec = manifest["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
            volumes = {v["name"] for v in spec["template"]["spec"]["volumes"]}
            container = main_container(manifest)
            for one in (*spec["template"]["spec"].get("initContainers", []), container):
                assert {m["name"] for m in one["volumeMounts"]} <= volumes
            ports = {p["name"] for p in container["ports"]}
            probes = [container[k]["httpGet"]["port"] for k in ("startupProbe", "livenessProbe", "readinessProbe")]
            assert set(probes) <= ports
    services = {m["metadata"]["name"] for m in rendered if m["kind"] == "Service"}
    groups = [m for m in rendered if m["kind"] == "StatefulSet" and naming.GROUP in m["metadata"]["labels"]]
    assert {m["spec"]["serviceName"] for m in groups} <= services


def test_few_objects_per_pipeline() -> None:
    """The bar is ten writes per new pipeline, the Secret with its credentials included."""
    assert len(render(pipeline(SMALLEST))) <= MOST_WRITES


def test_network_policies_never_have_an_empty_list() -> None:
    """`ingress: []` comes back from the API server as absent, and would be written again for ever."""
    for manifest in render(pipeline(FULL)):
        if manifest["kind"] == "NetworkPolicy":
            assert manifest["spec"]["ingress"]


def test_groups_have_ranks_and_a_leader() -> None:
    """Two nodes: one StatefulSet and headless Service per group; the argv names rank and leader by variables."""
    rendered = render(pipeline(FULL), replicas={"decode": 2})
    sets = [m for m in rendered if m["kind"] == "StatefulSet" and "-decode-" in m["metadata"]["name"]]
    assert [s["metadata"]["labels"][naming.GROUP] for s in sets] == ["0", "1"]
    name = sets[1]["metadata"]["name"]
    args = main_container(sets[1])["args"]
    assert args[args.index("--leader-addr") + 1] == f"{name}-0.{name}.serving.svc:29500"
    assert args[args.index("--node-rank") + 1] == "$(DYN_NODE_RANK)"
    rank = env_of(main_container(sets[1]))["DYN_NODE_RANK"]
    assert rank == {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert of_kind(rendered, "Service", name)["spec"]["publishNotReadyAddresses"] is True


def test_workers_know_their_pod() -> None:
    """Its records say where a worker runs, by which frontends name it to the operator; its host may be the node."""
    (one,) = [m for m in render(pipeline(SMALLEST)) if m["kind"] == "StatefulSet"]
    assert env_of(main_container(one))[POD_NAME] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert POD_NAME == config.POD_NAME


def test_converge_says_how_many_there_are_now() -> None:
    """During a rollout the new revision has fewer workers than the plan wants."""
    found = pipeline({"components": [{"engine": "mocker", "replicas": 4}]})
    assert of_kind(render(found, replicas={"worker": 1}), "StatefulSet")["spec"]["replicas"] == 1
    assert of_kind(render(found), "StatefulSet")["spec"]["replicas"] == 4


def test_engine_arguments_become_a_file() -> None:
    """Kubernetes would expand `$(HOME)` in an argv, and never sees these."""
    rendered = render(pipeline({"components": [{"engine": "mocker", "engineArgs": {"text": "$(HOME)"}}]}))
    config_map = of_kind(rendered, "ConfigMap")
    assert config_map["data"] == {"engine-args.json": '{"text":"$(HOME)"}'}
    assert config_map["immutable"] is True
    args = main_container(of_kind(rendered, "StatefulSet"))["args"]
    assert args[args.index("--engine-args") + 1] == "@/etc/dynamo/files/engine-args.json"


@pytest.mark.parametrize("spec", [SMALLEST, FULL])
def test_the_real_parsers_take_what_containers_get(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frontend and worker understand their argv and environment, files and variables in place."""
    rendered = render(pipeline(spec))
    files = {k: v for m in rendered if m["kind"] == "ConfigMap" for k, v in m["data"].items()}
    for manifest in rendered:
        if manifest["kind"] not in ("Deployment", "StatefulSet"):
            continue
        container = main_container(manifest)
        kind = container["name"]
        argv = [expanded(a, {"DYN_NODE_RANK": "1"}) for a in container["args"]]
        argv = [placed(a, files, tmp_path) for a in argv]
        settings_class = getattr(importlib.import_module(f"dynamo.{kind}.settings"), f"{kind.title()}Settings")
        for name, value in env_of(container).items():
            if isinstance(value, str):
                monkeypatch.setenv(name, value)
        found = parse(settings_class, argv)
        assert container["command"] == ["python", "-m", f"dynamo.{kind}"]
        assert found.graceful_shutdown_timeout_secs == spec.get("gracefulShutdownTimeoutSeconds", 600)
        if "--engine-args" in argv:
            assert found.arguments() == FULL["components"][1]["engineArgs"]


def expanded(text: str, values: dict[str, str]) -> str:
    """As the kubelet does it: `$(NAME)` is a variable, `$$` is a dollar."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else values.get(m[1], m[0]), text)


def placed(argument: str, files: dict[str, str], folder: Path) -> str:
    """With the ConfigMap's files on this machine."""
    name = argument.removeprefix("@").rpartition("/")[2]
    if not argument.startswith(("@/etc/dynamo/files/", "/etc/dynamo/files/")):
        return argument
    (folder / name).write_text(files[name], encoding="utf-8")
    return f"{'@' if argument.startswith('@') else ''}{folder / name}"


def test_literals_are_no_variables() -> None:
    """A model name that looks like a variable reaches the worker as it is."""
    args = worker({"model": {"name": "$(HOME)"}})["args"]
    assert args[args.index("--model-name") + 1] == "$$(HOME)"


def test_devices_are_requested() -> None:
    """Per pod, as request and limit, with shared memory for what they exchange."""
    container = worker({"model": {"source": "/m"}}, engine="vllm", tensorParallelSize=4, nodes=2)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "2"
    assert "/dev/shm" in [m["mountPath"] for m in container["volumeMounts"]]
    assert worker(accelerator={"resource": "amd.com/gpu", "count": 1})["resources"]["limits"] == {
        "amd.com/gpu": "1", "memory": "2Gi",
    }  # fmt: skip
    assert worker()["resources"]["limits"] == {"memory": "2Gi"}, "what needs little gets little"
    assert "memory" not in container["resources"]["limits"], "what a model takes only its user knows"


def test_a_model_of_the_hub_is_loaded_before_the_worker_starts() -> None:
    """Into the folder where the worker looks, with the token and the user's variables, and none of NATS or etcd."""
    spec = {
        "model": {"source": "hf://org/repo", "tokenSecret": {"name": "hf"}, "cache": {"size": "1Gi"}},
        "components": [
            {
                "engine": "mocker", "env": [{"name": "HF_ENDPOINT", "value": "http://hub"}],
                "envFrom": [{"secretRef": {"name": "s"}}],
            }
        ],
    }  # fmt: skip
    template = of_kind(render(pipeline(spec), SECURED), "StatefulSet")["spec"]["template"]["spec"]
    (loader,), (main,) = template["initContainers"], template["containers"]
    assert [*loader["command"], *loader["args"]] == [
        "python", "-m", "dynamo.worker.fetch", "--engine", "mocker", "--model-path", "hf://org/repo",
    ]  # fmt: skip
    token = {"secretKeyRef": {"name": "hf", "key": "HF_TOKEN"}}
    assert env_of(loader) == {
        "HF_HOME": "/var/cache/dynamo/huggingface", "HOME": "/tmp", "HF_TOKEN": token, "HF_ENDPOINT": "http://hub",
    }  # fmt: skip
    serving = env_of(main)
    assert "HF_TOKEN" not in serving, "users' code runs there"
    assert serving["HF_HUB_OFFLINE"] == "1", "a gated model isn't asked for again"
    assert all(serving[name] == value for name, value in env_of(loader).items() if name != "HF_TOKEN")
    assert loader["envFrom"] == main["envFrom"]
    assert {"name": "cache", "mountPath": "/var/cache/dynamo"} in loader["volumeMounts"]
    assert not any("nvidia" in name for amounts in loader["resources"].values() for name in amounts)
    assert "initContainers" not in of_kind(render(pipeline(SMALLEST)), "StatefulSet")["spec"]["template"]["spec"]


def test_shared_memory_is_sized() -> None:
    """Memory without a size is half of the node's."""

    def size(**component: Any) -> Any:
        found = pipeline({"components": [{"engine": "vllm", **component}], "model": {"source": "/m"}})
        volumes = of_kind(render(found), "StatefulSet")["spec"]["template"]["spec"]["volumes"]
        return next((v["emptyDir"] for v in volumes if v["name"] == "shm"), None)

    assert size() == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert size(sharedMemory="2Gi") == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert size(accelerator={"count": 0}) is None
    assert size(accelerator={"count": 0}, sharedMemory=1024) == {"medium": "Memory", "sizeLimit": "1024"}


@pytest.mark.parametrize(
    ("frontend", "expected"),
    [
        ({"port": 80}, "http://llama-frontend.serving.svc:80"),
        ({"ingress": {}}, "http://llama-frontend.serving.svc:8000"),
        ({"ingress": {"host": "a.b"}}, "http://a.b"),
        ({"ingress": {"host": "a.b", "tlsSecret": "t"}}, "https://a.b"),
        ({"ingress": {"host": "*.b"}}, "http://llama-frontend.serving.svc:8000"),
        ({"httpRoute": {"gateway": {"name": "g"}, "hostnames": ["a.b", "c"]}}, "http://a.b"),
        ({"httpRoute": {"gateway": {"name": "g"}, "hostnames": ["a.b"], "https": True}}, "https://a.b"),
        ({"httpRoute": {"gateway": {"name": "g"}}}, "http://llama-frontend.serving.svc:8000"),
    ],
)
def test_the_url_is_where_clients_come_in(frontend: Spec, expected: str) -> None:
    """The host that they use, else the Service."""
    found = pipeline({**SMALLEST, "frontend": frontend})
    assert frontend_url(RenderContext.of(found, plan(found, CLUSTER), CLUSTER_SETTINGS)) == expected


def test_a_limit_without_request_stays_alone() -> None:
    """Kubernetes takes the limit as the request; a default request above it would be refused."""
    assert worker(resources={"limits": {"memory": "64Mi"}})["resources"] == {
        "requests": {"cpu": "100m"},
        "limits": {"memory": "64Mi"},
    }


def test_models_on_a_claim_are_mounted() -> None:
    """`pvc://claim/path` is a path in the container."""
    found = pipeline({"components": [{"engine": "llamacpp"}], "model": {"source": "pvc://models/a/b.gguf"}})
    manifest = of_kind(render(found), "StatefulSet")
    args = main_container(manifest)["args"]
    assert args[args.index("--model-path") + 1] == "/models/source/a/b.gguf"
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    assert {"claimName": "models", "readOnly": True} in [v.get("persistentVolumeClaim") for v in volumes]


def secret_volumes(runtime: Spec, cluster: ClusterSettings) -> dict[str, Any]:
    template = of_kind(render(pipeline({**SMALLEST, "runtime": runtime}), cluster), "StatefulSet")["spec"]["template"]
    return {v["name"]: v["secret"] for v in template["spec"]["volumes"] if "secret" in v}


def test_credentials_are_files() -> None:
    """No value and no key stands in a template: the runtime finds the files, by the names that it knows."""
    environment = env_of(worker(cluster=SECURED))
    assert environment["ETCD_AUTH_DIR"] == "/etc/dynamo/credentials/etcd"
    assert environment["NATS_AUTH_DIR"] == "/etc/dynamo/credentials/nats"
    found = secret_volumes({}, SECURED)
    for server, files in (("etcd", ETCD_FILES), ("nats", NATS_FILES)):
        volume = found[f"{server}-credentials"]
        assert (volume["secretName"], volume["optional"]) == ("llama-credentials", True)
        assert {i["path"]: i["key"] for i in volume["items"]} == {f: f"{server}.{f}" for f in files}
    assert secret_volumes({}, CLUSTER_SETTINGS) == {}


def test_the_platforms_credentials_go_to_its_own_servers_only() -> None:
    """A pipeline that names a server or a Secret of its own gets that Secret whole, or none."""
    etcd = {"endpoints": ["http://elsewhere:2379"]}
    assert set(secret_volumes({"etcd": etcd}, SECURED)) == {"nats-credentials"}
    found = secret_volumes({"etcd": {**etcd, "secret": "mine"}, "nats": {"url": "nats://n:4222"}}, SECURED)
    assert found == {"etcd-credentials": {"secretName": "mine", "defaultMode": 0o440}}


def test_the_users_variables_win_and_keep_their_order() -> None:
    """`$(A)` in a value needs A before it."""
    container = worker(env=[{"name": "B", "value": "1"}, {"name": "HF_HOME", "value": "/x"}, {"name": "A"}])
    assert [e["name"] for e in container["env"]][-3:] == ["B", "HF_HOME", "A"]
    assert env_of(container)["HF_HOME"] == "/x"


def test_privileged_ports_are_the_services_only() -> None:
    """A process without root listens high; clients find port 80."""
    rendered = render(pipeline({**SMALLEST, "frontend": {"port": 80}}))
    assert of_kind(rendered, "Service", "llama-frontend")["spec"]["ports"][0]["port"] == 80
    container = main_container(of_kind(rendered, "Deployment"))
    assert container["ports"][0]["containerPort"] == 8000
    assert container["args"][container["args"].index("--http-port") + 1] == "8000"


def test_grace_outlasts_the_streams() -> None:
    """Kubernetes kills only after the process had its own grace."""
    for template in pod_templates(render(pipeline(SMALLEST))):
        assert template["spec"]["terminationGracePeriodSeconds"] > 600


def test_images_are_part_of_the_revision() -> None:
    """A new version of the platform rolls; a change of how many doesn't."""
    found, more = pipeline(SMALLEST), pipeline({**SMALLEST, "replicas": 5})

    def revision(p: DynamoPipeline, cluster: ClusterSettings) -> str:
        return with_images(plan(p, CLUSTER), p, cluster).workers[0].revision

    assert revision(found, CLUSTER_SETTINGS) == revision(more, CLUSTER_SETTINGS)
    assert revision(found, CLUSTER_SETTINGS) != revision(
        found, ClusterSettings("dynamo/frontend:1", {"default": "dynamo/worker:2"})
    )


def test_only_objects_of_a_cluster_own_others() -> None:
    """Without a uid nothing would ever clean up."""
    found = pipeline(SMALLEST)
    orphan = found.model_copy(update={"metadata": found.metadata.model_copy(update={"__pydantic_extra__": {}})})
    object.__setattr__(orphan.metadata, "__pydantic_extra__", {})
    with pytest.raises(RenderError, match=r"metadata\.uid"):
        render(orphan)


def test_golden_files_are_what_kubernetes_reads() -> None:
    """YAML 1.1 readers see the same values."""
    assert list(yaml.safe_load_all((GOLDEN / "full.yaml").read_text("utf-8"))) == render(pipeline(FULL))


BALANCED = {"service": {"type": "LoadBalancer"}}
ONE = [{"ip": "203.0.113.7"}]


@pytest.mark.parametrize(
    ("frontend", "kind", "addresses", "expected"),
    [
        (BALANCED, "Service", [], "http://llama-frontend.serving.svc:8000"),
        (BALANCED, "Service", ONE, "http://203.0.113.7:8000"),
        ({**BALANCED, "port": 80}, "Service", [{"ip": "2001:db8::7"}], "http://[2001:db8::7]"),
        (BALANCED, "Service", [{"hostname": "b.example.org"}, {"hostname": "a.example.org"}],
         "http://a.example.org:8000"),
        ({}, "Service", ONE, "http://llama-frontend.serving.svc:8000"),
        ({"ingress": {}}, "Ingress", ONE, "http://203.0.113.7"),
        ({"ingress": {"tlsSecret": "t"}}, "Ingress", ONE, "https://203.0.113.7"),
        ({"ingress": {"host": "llama.example.org"}}, "Ingress", ONE, "http://llama.example.org"),
        ({"ingress": {}, **BALANCED}, "Service", ONE, "http://203.0.113.7:8000"),
    ],
)  # fmt: skip
def test_the_url_is_a_load_balancers_address_once_it_has_one(
    frontend: Spec, kind: str, addresses: list[Spec], expected: str
) -> None:
    """Of the Service, or of an Ingress without a host of its own; what the store keeps is enough for it."""
    found = pipeline({**SMALLEST, "frontend": frontend})
    metadata = {"name": "llama-frontend", "namespace": "serving"}
    status = {"loadBalancer": {"ingress": addresses} if addresses else {}}
    kept = trimmed(resource_of(kind), {"metadata": metadata, "status": status})
    assert frontend_url(RenderContext.of(found, plan(found, CLUSTER), CLUSTER_SETTINGS), [kept]) == expected
