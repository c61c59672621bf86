"""What nobody gets by writing pipelines: nodes, accounts, texts in shared proxies, and what else a platform refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.pipelines import FULL, ROUTED, SMALLEST, Spec, pipeline
from tests.operator.rendered import CLUSTER_SETTINGS, main_container, of_kind, pod_templates, render

from dynamo.operator.manifests.context import PodTemplatePolicy, RenderError
from dynamo.operator.manifests.user_pod_template import refusals

RESTRICTED = replace(CLUSTER_SETTINGS, pod_template_policy=PodTemplatePolicy.RESTRICTED)
FREE = replace(CLUSTER_SETTINGS, pod_template_policy=PodTemplatePolicy.UNRESTRICTED)


def templated(template: dict[str, Any], part: str = "worker") -> Spec:
    if part == "frontend":
        return {**SMALLEST, "frontend": {"podTemplate": template}}
    return {"components": [{"engine": "mocker", "podTemplate": template}]}


def own(**fields: Any) -> dict[str, Any]:
    """Something of the worker's container."""
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


def beside(**fields: Any) -> dict[str, Any]:
    """A container of the user's."""
    return {"spec": {"containers": [{"name": "other", "image": "x", **fields}]}}


def templated_memory(amount: str) -> Spec:
    """Asked for by the frontends' podTemplate."""
    container = {"name": "frontend", "resources": {"requests": {"memory": amount}}}
    return {"podTemplate": {"spec": {"containers": [container]}}}


BASELINE: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    ({"spec": {"hostPID": True}}, "spec.hostPID"),
    ({"spec": {"hostIPC": True}}, "spec.hostIPC"),
    ({"spec": {"nodeName": "n1"}}, "spec.nodeName"),
    ({"spec": {"serviceAccountName": "admin"}}, "spec.serviceAccountName"),
    ({"spec": {"serviceAccount": "admin"}}, "spec.serviceAccount"),
    ({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}, "spec.volumes[v].hostPath"),
    ({"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/"}}]}}, "spec.volumes[tmp].hostPath"),
    ({"spec": {"$patch": "replace", "containers": [{"name": "worker", "image": "x"}], "hostPID": True}},
     "spec.hostPID"),
    ({"spec": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}, "sysctls"),
    ({"spec": {"securityContext": {"windowsOptions": {"hostProcess": True}}}}, "windowsOptions.hostProcess"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile.type"),
    ({"spec": {"securityContext": {"seLinuxOptions": {"role": "r"}}}}, "seLinuxOptions"),
    ({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}}},
     "apparmor"),
    (own(securityContext={"privileged": True}), "spec.containers[worker].securityContext.privileged"),
    (beside(securityContext={"privileged": True}), "spec.containers[other].securityContext.privileged"),
    ({"spec": {"initContainers": [{"name": "i", "image": "x", "securityContext": {"privileged": True}}]}},
     "spec.initContainers[i].securityContext.privileged"),
    ({"spec": {"ephemeralContainers": [{"name": "e", "securityContext": {"privileged": True}}]}},
     "spec.ephemeralContainers[e].securityContext.privileged"),
    (own(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}), "SYS_ADMIN isn't allowed"),
    (own(securityContext={"procMount": "Unmasked"}), "procMount"),
    (own(securityContext={"appArmorProfile": {"type": "Unconfined"}}), "appArmorProfile.type"),
    (own(ports=[{"containerPort": 1, "hostPort": 1}]), "hostPort 1"),
    (own(livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80}}), "livenessProbe.httpGet.host"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "said"), BASELINE)
def test_baseline_refuses_what_reaches_beyond_the_pod(template: dict[str, Any], said: str) -> None:
    """By default; each with its field in the sentence, for frontends too. A platform may let it all pass."""
    with pytest.raises(RenderError) as caught:
        render(pipeline(templated(template)))
    assert str(caught.value).startswith("spec.components[0].podTemplate.")
    assert said in str(caught.value)
    assert "pipelines.podTemplatePolicy=baseline" in str(caught.value)
    render(pipeline(templated(template)), FREE)


def test_frontends_are_under_the_same_policy() -> None:
    """Nobody gets by the other pod what the one refuses."""
    with pytest.raises(RenderError, match=r"^spec.frontend.podTemplate.spec.hostPID: "):
        render(pipeline(templated({"spec": {"hostPID": True}}, "frontend")))


@pytest.mark.parametrize("spec", [SMALLEST, FULL, ROUTED])
def test_our_own_pods_are_restricted(spec: Spec) -> None:
    """What we make passes the strictest standard, so that a platform can ask for it."""
    assert list(pod_templates(render(pipeline(spec), RESTRICTED)))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (beside(), "spec.containers[other].securityContext.allowPrivilegeEscalation"),
        (own(securityContext={"runAsUser": 0}), "runAsUser: must not be 0"),
        (own(securityContext={"runAsNonRoot": False}), "runAsNonRoot"),
        (own(securityContext={"capabilities": {"add": ["CHOWN"]}}), "NET_BIND_SERVICE only"),
        (own(securityContext={"allowPrivilegeEscalation": True}), "must be false"),
        ({"spec": {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/"}}]}}, "spec.volumes[v].nfs"),
    ],
)
def test_restricted_refuses_more(template: dict[str, Any], said: str) -> None:
    """What runs as root, or may become it, and volumes that aren't Kubernetes' own."""
    with pytest.raises(RenderError) as caught:
        render(pipeline(templated(template)), RESTRICTED)
    assert said in str(caught.value)
    render(pipeline(templated(template)))


def test_a_platform_names_the_accounts_that_may_be_used() -> None:
    """The pipeline's own may always be said; another one only where the platform lists it."""
    spec = templated({"spec": {"serviceAccountName": "reader"}})
    render(pipeline(spec), replace(CLUSTER_SETTINGS, service_accounts=("reader",)))
    render(pipeline(templated({"spec": {"serviceAccountName": "llama-pipeline"}})))


@pytest.mark.parametrize("wild", [None, 1, "x", [], [1], {"a": 1}])
def test_whatever_a_template_holds_is_judged(wild: Any) -> None:
    """Fields of another type than the schema's are somebody else's to refuse."""
    spec = dict.fromkeys(("containers", "volumes", "securityContext", "initContainers", "hostNetwork"), wild)
    refusals({"metadata": wild, "spec": spec}, PodTemplatePolicy.RESTRICTED, "a")
    refusals({"spec": {"containers": [{"name": "c", "securityContext": wild, "ports": wild}]}},
             PodTemplatePolicy.RESTRICTED, "a")  # fmt: skip


@pytest.mark.parametrize(
    "key", ["nginx.ingress.kubernetes.io/configuration-snippet", "nginx.org/server-snippets", "a.b/auth-tls-secret"]
)
def test_no_ingress_writes_into_a_shared_proxy(key: str) -> None:
    """Its annotations pass but for those patterns, which a platform may set."""
    spec = {**SMALLEST, "frontend": {"ingress": {"annotations": {key: "x"}}}}
    with pytest.raises(RenderError, match="deniedIngressAnnotations: remove it"):
        render(pipeline(spec))
    render(pipeline(spec), replace(CLUSTER_SETTINGS, denied_annotations=()))


def test_routes_can_be_switched_off() -> None:
    """Host names on a shared Gateway are more than `edit` gives by itself."""
    with pytest.raises(RenderError, match=r"^spec.frontend.httpRoute: isn't allowed by the platform"):
        render(pipeline(ROUTED), replace(CLUSTER_SETTINGS, http_routes=False))


def test_only_the_api_is_let_in_from_outside() -> None:
    """Metrics and health stay inside, unless the pipeline names other paths."""

    def paths(spec: Spec) -> list[str]:
        (rule,) = of_kind(render(pipeline(spec)), "Ingress")["spec"]["rules"]
        return [path["path"] for path in rule["http"]["paths"]]

    assert paths({**SMALLEST, "frontend": {"ingress": {}}}) == ["/v1"]
    assert paths({**SMALLEST, "frontend": {"ingress": {"paths": ["/v1", "/tokenize"]}}}) == ["/v1", "/tokenize"]
    (rule,) = of_kind(render(pipeline(ROUTED)), "HTTPRoute")["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]


def test_the_kubelet_asks_where_no_client_can_keep_it_waiting() -> None:
    """Frontends with one process, too, answer probes, metrics and the operator on a port of their own."""
    container = main_container(of_kind(render(pipeline(SMALLEST)), "Deployment"))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8000, "system": 9090}
    arguments = container["args"]
    assert arguments[arguments.index("--system-port") + 1] == "9090"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "system"


@pytest.mark.parametrize(
    ("frontend", "limit", "request_"),
    [
        ({}, "2Gi", "512Mi"),
        ({"workers": 4}, "8Gi", "512Mi"),
        ({"resources": {"limits": {"cpu": 2}}}, "2Gi", "512Mi"),
        ({"resources": {"limits": {"memory": "1Gi"}}}, "1Gi", None),
        ({"resources": {"requests": {"memory": "6Gi"}}}, None, "6Gi"),
        (templated_memory("6Gi"), None, "6Gi"),
    ],
)  # fmt: skip
def test_frontends_have_a_memory_limit(frontend: Spec, limit: str | None, request_: str | None) -> None:
    """Each process has room for the largest requests; what the user says of memory counts alone."""
    resources = main_container(of_kind(render(pipeline({**SMALLEST, "frontend": frontend})), "Deployment"))["resources"]
    assert resources.get("limits", {}).get("memory") == limit
    assert resources.get("requests", {}).get("memory") == request_


def test_keys_come_as_a_file_that_can_be_replaced() -> None:
    """A folder of a Secret, never a value or a single file; the frontend is told where."""
    spec = {**SMALLEST, "frontend": {"apiKeys": {"secret": "clients", "key": "list"}}}
    deployment = of_kind(render(pipeline(spec)), "Deployment")
    container = main_container(deployment)
    (volume,) = [v for v in deployment["spec"]["template"]["spec"]["volumes"] if v["name"] == "api-keys"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "api-keys"]
    (variable,) = [e["value"] for e in container["env"] if e["name"] == "DYN_API_KEYS_FILE"]
    assert volume["secret"] == {"secretName": "clients", "items": [{"key": "list", "path": "keys"}], "defaultMode": 288}
    assert "subPath" not in mount
    assert variable == f"{mount['mountPath']}/keys"


def test_metrics_are_for_whom_the_platform_names() -> None:
    """Its monitoring's namespaces and the operator's own; requests come from anywhere all the same."""
    found = render(pipeline(SMALLEST), replace(CLUSTER_SETTINGS, metrics_from=("monitoring", "dynamo")))
    frontend, workers = (of_kind(found, "NetworkPolicy", f"llama-{part}")["spec"] for part in ("frontend", "workers"))
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["dynamo", "monitoring"]}
    readers = {"from": [{"namespaceSelector": {"matchExpressions": [names]}}]}
    system = [{"port": 9090, "protocol": "TCP"}]
    assert frontend["ingress"] == [{"ports": [{"port": 8000, "protocol": "TCP"}]}, {**readers, "ports": system}]
    assert workers["ingress"][1] == {**readers, "ports": system}


def test_ways_out_are_the_few_that_a_pipeline_needs() -> None:
    """DNS, its own pods, etcd, NATS (also those that it names itself) and the hub; a node's metadata never."""
    cluster = replace(CLUSTER_SETTINGS, egress_ports=(443,), connections=("http://etcd:2379", "nats://nats"))
    spec = {**SMALLEST, "runtime": {"etcd": {"endpoints": ["https://other:12379"]}}}
    found = of_kind(render(pipeline(spec), cluster), "NetworkPolicy", "llama-egress")["spec"]
    assert found["policyTypes"] == ["Egress"]
    *_, out = found["egress"]
    assert [port["port"] for port in out["ports"]] == [443, 2379, 4222, 12379]
    blocks = [peer["ipBlock"] for peer in out["to"] if "ipBlock" in peer]
    assert {block["cidr"]: block["except"] for block in blocks} == {
        "0.0.0.0/0": ["169.254.0.0/16"], "::/0": ["fe80::/10", "fd00:ec2::254/128"],
    }  # fmt: skip
    assert all(rule.get("to") or rule["ports"][0]["port"] == 53 for rule in found["egress"])
    assert not [m for m in render(pipeline(SMALLEST)) if m["metadata"]["name"] == "llama-egress"]
