"""Collects facts of a cluster and of one pipeline for the rules of `diagnosis/`. Reads only; each answer is bounded.

What a user may not see is None or empty, and no finding: the rights that matter are asked about by name.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Container, Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import click
from pydantic import ValidationError

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.look import READ_SECONDS, Look, amount
from dynamo.cli.cluster.node_facts import dns_answers, egress_denied_by, is_ready, node_devices, nodes_of
from dynamo.cli.cluster.pipelines.events import event_time
from dynamo.cli.cluster.pipelines.progress import condition, phase_of
from dynamo.cli.cluster.platform.permissions import Access
from dynamo.cli.cluster.platform.state import CRD
from dynamo.cli.diagnosis import cluster as rules
from dynamo.cli.diagnosis.cluster import ClusterFacts, OperatorFact, QuotaFact
from dynamo.cli.diagnosis.devices import demand_of
from dynamo.cli.diagnosis.findings import report_of
from dynamo.cli.diagnosis.pipeline import PipelineFacts, PodFact
from dynamo.cli.diagnosis.traffic import TrafficFacts
from dynamo.cli.local.facts.traffic import read
from dynamo.operator.api.conditions import Type
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.observe import why
from dynamo.operator.kube.resources import EVENTS, LEASES, PIPELINES, PODS, Resource, resource_of
from dynamo.operator.manifests import naming
from dynamo.operator.plan.plan import SYSTEM_PORT

Answer = TypeVar("Answer")
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_CRDS: Final = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
_CLASSES: Final = Resource("storage.k8s.io/v1", "StorageClass", "storageclasses")
_QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
_ENDPOINTS: Final = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
_WEBHOOKS: Final = tuple(
    Resource("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", f"{kind.lower()}webhookconfigurations")
    for kind in ("Validating", "Mutating")
)
_OPERATORS: Final = "app.kubernetes.io/name=dynamo-platform,app.kubernetes.io/component=operator"
_LEASE: Final = "operator"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_ENFORCED: Final = "pod-security.kubernetes.io/enforce"
_VERBS: Final = ("get", "create", "patch", "delete")
_FRONTENDS: Final = f"{naming.COMPONENT}={naming.FRONTEND}"
_METRICS_BYTES: Final = 1 << 22
_MOST_FRONTENDS: Final = 5
_LAST_EVENTS: Final = 10


def cluster_facts(cluster: Cluster, wanted: Sequence[DynamoPipeline] = ()) -> tuple[ClusterFacts, list[str]]:
    """Return what the rules look at, and what couldn't be seen. Raises `ClusterError` where nobody answers.

    `wanted` are the pipelines of a file; without any, those of the namespace say what devices are asked for.
    """
    look = Look(cluster)
    skew, namespace = _skew(cluster), cluster.namespace
    place = look.get(f"/api/v1/namespaces/{namespace}", "the namespace")
    nodes = nodes_of(look)
    demands = demand_of(wanted or _pipelines(look, namespace))
    classes = look.items(_CLASSES, None)
    facts = ClusterFacts(
        label=cluster.label,
        namespace=namespace,
        namespace_exists=place is not None or None,
        denied=_denied(cluster, namespace),
        crd_versions=_crd_versions(look),
        crd_wanted=PIPELINES.api_version.rpartition("/")[2],
        operators=_operators(look, skew or 0.0),
        default_storage=None if classes is None else any(map(_is_default, classes)),
        nodes=None if nodes is None else len(nodes),
        nodes_ready=None if nodes is None else sum(map(is_ready, nodes)),
        dns_answers=dns_answers(look),
        devices=() if nodes is None else node_devices(nodes, [demand.resource for demand in demands]),
        demands=demands,
        egress_denied_by=egress_denied_by(look, namespace),
        quotas=tuple(_quota_facts(look.items(_QUOTAS, namespace) or ())),
        pod_security=str(((place or {}).get("metadata") or {}).get("labels", {}).get(_ENFORCED, "")),
        webhooks_down=tuple(_webhooks_down(look)),
        image_errors=tuple(_image_errors(look.items(PODS, namespace) or ())),
        skew_seconds=skew,
    )
    return _certain(facts, look), look.unseen


def preflight(cluster: Cluster, but: Container[str] = (), wanted: Sequence[DynamoPipeline] = ()) -> None:
    """Say on standard error what will stand in the way, with the rules of `dynamo doctor`; it refuses nothing.

    `but` are codes that the command mends itself, or refuses with a sentence of its own; `wanted` what it will apply.
    """
    seen = try_to(lambda: cluster_facts(cluster, wanted), [])
    for finding in report_of([], rules.findings(seen[0]) if seen else ()).findings:
        if finding.code not in but:
            click.echo(f"warning: {finding.what}: {finding.cause}. Mend it: {finding.mend}", err=True)


def _pipelines(look: Look, namespace: str) -> list[DynamoPipeline]:
    """Return those of the namespace that can be read; others are told of by their own status."""
    head = {"apiVersion": PIPELINES.api_version, "kind": PIPELINES.kind}
    pipelines = []
    for live in look.items(PIPELINES, namespace) or ():
        with contextlib.suppress(ValidationError):
            pipelines.append(DynamoPipeline.model_validate_json(json.dumps(head | live)))
    return pipelines


def _certain(facts: ClusterFacts, look: Look) -> ClusterFacts:
    """Say that a namespace is missing only where it may be seen."""
    hidden = any(text.startswith("the namespace") for text in look.unseen)
    if facts.namespace_exists is None and not hidden:
        return ClusterFacts(**{**facts.__dict__, "namespace_exists": False})
    return facts


def _skew(cluster: Cluster) -> float | None:
    with cluster.open("GET", "/version", {}, read_seconds=READ_SECONDS) as answer:
        date = answer.headers.get("Date", "")
        answer.read(1 << 16)
    try:
        return time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _denied(cluster: Cluster, namespace: str) -> tuple[str, ...]:
    wanted = [Access(verb, PIPELINES.group, PIPELINES.plural, namespace) for verb in _VERBS]
    wanted.append(Access("list", "", "pods", namespace))
    return tuple(str(access) for access in wanted if not allowed(cluster, access))


def allowed(cluster: Cluster, access: Access) -> bool:
    """Ask whether we may do something."""
    answer = cluster.request("POST", REVIEWS, {}, access.review(), "application/json", read_seconds=READ_SECONDS)
    return bool((answer.get("status") or {}).get("allowed"))


def _crd_versions(look: Look) -> tuple[str, ...] | None:
    crd = look.get(_CRDS.path(name=CRD), "the CRD")
    if crd is not None:
        return tuple(v["name"] for v in crd["spec"]["versions"] if v.get("served"))
    if not any(text.startswith("the CRD") for text in look.unseen):
        return ()
    group = look.get(f"/apis/{PIPELINES.group}", "the API group")  # everybody may ask for it
    return tuple(v["version"] for v in (group or {}).get("versions") or [])


def _operators(look: Look, skew: float) -> tuple[OperatorFact, ...] | None:
    live = look.items(resource_of("Deployment"), None, labelSelector=_OPERATORS)
    return None if live is None else tuple(_operator(look, deployment, skew) for deployment in live[:5])


def _operator(look: Look, deployment: Live, skew: float) -> OperatorFact:
    namespace = deployment["metadata"]["namespace"]
    pods = look.items(PODS, namespace, labelSelector=_OPERATORS) or []
    waits = next((w for w in map(why, pods) if w), None)
    leases = [live for live in look.items(LEASES, namespace) or [] if _LEASE in live["metadata"]["name"]]
    lease = leases[0].get("spec") or {} if leases else {}
    return OperatorFact(
        namespace=namespace,
        wanted=deployment["spec"].get("replicas", 1),
        ready=(deployment.get("status") or {}).get("readyReplicas", 0),
        waits=f"pod {waits.pod}: {waits.reason}: {waits.message}" if waits else "",
        leader=str(lease.get("holderIdentity") or ""),
        lease_age_seconds=_age(str(lease.get("renewTime") or ""), skew),
        lease_seconds=float(lease.get("leaseDurationSeconds") or 15),
    )


def _age(stamp: str, skew: float) -> float:
    """Return how old a time is by the cluster's clock; 0 for what is none."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds() - skew
    except (TypeError, ValueError):
        return 0.0


def _is_default(live: Live) -> bool:
    return (live["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"


def _quota_facts(quotas: Iterable[Live]) -> Iterable[QuotaFact]:
    for quota in quotas:
        status = quota.get("status") or {}
        for resource, hard in (status.get("hard") or {}).items():
            used = str((status.get("used") or {}).get(resource, "0"))
            spent = amount(used) >= amount(str(hard)) > 0  # of 0 nothing was to be had from the beginning
            left = amount(str(hard)) - amount(used)
            yield QuotaFact(quota["metadata"]["name"], resource, used, str(hard), spent, left)


def _webhooks_down(look: Look) -> Iterable[tuple[str, str]]:
    for resource in _WEBHOOKS:
        for configuration in look.items(resource, None) or ():
            for hook in configuration.get("webhooks") or ():
                service = (hook.get("clientConfig") or {}).get("service")
                if service and hook.get("failurePolicy", "Fail") == "Fail" and not _answers(look, service):
                    yield str(hook["name"]), f"{service['namespace']}/{service['name']}"


def _answers(look: Look, service: dict[str, Any]) -> bool:
    chosen = f"kubernetes.io/service-name={service['name']}"
    slices = look.items(_ENDPOINTS, service["namespace"], labelSelector=chosen)
    return slices is None or any(
        (endpoint.get("conditions") or {}).get("ready", True) for s in slices for endpoint in s.get("endpoints") or ()
    )


def _image_errors(pods: Iterable[Live]) -> Iterable[tuple[str, str]]:
    for pod in pods:
        waits = why(pod)
        if waits and any(word in waits.reason for word in ("ImagePull", "ErrImage", "InvalidImageName")):
            yield waits.pod, f"{waits.reason}: {waits.message}"


def pipeline_facts(cluster: Cluster, live: Live) -> PipelineFacts:
    """Return what is known of one pipeline: its condition, its pods that don't serve, its warnings."""
    look = Look(cluster)
    name, namespace = live["metadata"]["name"], live["metadata"]["namespace"]
    pods = look.items(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name}") or []
    ready = condition(live, Type.READY)
    return PipelineFacts(
        name=name,
        namespace=namespace,
        phase=phase_of(live).value,
        reason=str(ready.get("reason", "")),
        message=str(ready.get("message", "")),
        pods=tuple(PodFact(w.pod, w.reason, w.message) for w in map(why, pods) if w),
        events=tuple(_warnings(look.items(EVENTS, namespace, fieldSelector="type=Warning") or (), name)),
    )


def traffic_facts(cluster: Cluster, name: str) -> TrafficFacts | None:
    """Read what a pipeline's frontends have counted, through the API server; None where none can be asked."""
    namespace, texts = cluster.namespace, []
    pods = Look(cluster).items(PODS, namespace, labelSelector=f"{naming.PIPELINE}={name},{_FRONTENDS}") or []
    for pod in pods[:_MOST_FRONTENDS]:
        path = f"{PODS.path(namespace, pod['metadata']['name'])}:{SYSTEM_PORT}/proxy/metrics"
        with contextlib.suppress(ClusterError), cluster.open("GET", path, {}, read_seconds=READ_SECONDS) as answer:
            texts.append(answer.read(_METRICS_BYTES).decode(errors="replace"))
    try:
        return read(_together(texts), name, f" -n {namespace}") if texts else None
    except ValueError:  # a proxy's own page in a frontend's place
        return None


def _together(texts: Iterable[str]) -> str:
    """Return the samples of all, without what describes them: it must not come twice."""
    return "\n".join(line for text in texts for line in text.splitlines() if not line.startswith("#")) + "\n"


def _warnings(events: Iterable[Live], name: str) -> list[tuple[str, str]]:
    about = [
        event for event in events
        if (said := str((event.get("involvedObject") or {}).get("name", ""))) == name or said.startswith(f"{name}-")
    ]  # fmt: skip
    last = sorted(about, key=event_time)[-_LAST_EVENTS:]
    return [(str(event.get("reason", "")), str(event.get("message", ""))) for event in last]


def try_to(collect: Callable[[], Answer], unseen: list[str]) -> Answer | None:
    """Collect, or note why it couldn't."""
    try:
        return collect()
    except ClusterError as error:
        unseen.append(error.message)
        return None
