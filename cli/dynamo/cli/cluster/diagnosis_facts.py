"""Collects facts of a cluster and of one pipeline for the rules of `diagnosis/`. Reads only; each answer is bounded.

What a user may not see is None or empty, and no finding: the rights that matter are asked about by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

import click

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.cluster.pipelines.events import event_time
from dynamo.cli.cluster.pipelines.progress import condition, phase_of
from dynamo.cli.cluster.platform.permissions import Access
from dynamo.cli.cluster.platform.state import CRD
from dynamo.cli.diagnosis import cluster as rules
from dynamo.cli.diagnosis.cluster import ClusterFacts, OperatorFact, QuotaFact
from dynamo.cli.diagnosis.findings import report_of
from dynamo.cli.diagnosis.pipeline import PipelineFacts, PodFact
from dynamo.operator.api.conditions import Type
from dynamo.operator.cluster.observe import why
from dynamo.operator.kube.resources import EVENTS, LEASES, PIPELINES, PODS, Resource, resource_of
from dynamo.operator.manifests import naming

Answer = TypeVar("Answer")
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
READ_SECONDS: Final = 5.0
WITHIN_SECONDS: Final = 30.0
_CRDS: Final = Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
_CLASSES: Final = Resource("storage.k8s.io/v1", "StorageClass", "storageclasses")
_QUOTAS: Final = Resource("v1", "ResourceQuota", "resourcequotas")
_NODES: Final = Resource("v1", "Node", "nodes")
_ENDPOINTS: Final = Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
_WEBHOOKS: Final = tuple(
    Resource("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", f"{kind.lower()}webhookconfigurations")
    for kind in ("Validating", "Mutating")
)
_OPERATORS: Final = "app.kubernetes.io/name=dynamo-platform,app.kubernetes.io/component=operator"
_LEASE: Final = "operator"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_ENFORCED: Final = "pod-security.kubernetes.io/enforce"
_GPU: Final = "nvidia.com/gpu"
_GPU_LABELS: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
_VERBS: Final = ("get", "create", "patch", "delete")
_MOST: Final = 500
_LAST_EVENTS: Final = 10
_SUFFIXES: Final = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


class _Look:
    """Questions to one API server, until the time is up."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._until = time.monotonic() + WITHIN_SECONDS
        self.unseen: list[str] = []

    def get(self, path: str, what: str, **query: str) -> Live | None:
        """Return what lies at a path; None where it isn't there, may not be seen, or the time is up."""
        if time.monotonic() > self._until:
            self.unseen.append(f"{what}: no time was left")
            return None
        try:
            return self._cluster.request("GET", path, query, read_seconds=READ_SECONDS)
        except RefusedError as refused:
            if refused.status not in (403, 404):
                raise
            if refused.status == 403:
                self.unseen.append(f"{what}: you may not read them")
            return None

    def items(self, resource: Resource, namespace: str | None, **query: str) -> list[Live] | None:
        """Return the first of a kind; None where they may not be seen."""
        answer = self.get(resource.path(namespace), resource.plural, limit=str(_MOST), **query)
        return None if answer is None else list(answer.get("items") or [])


def cluster_facts(cluster: Cluster, *, gpu_wanted: bool = False) -> tuple[ClusterFacts, list[str]]:
    """Return what the rules look at, and what couldn't be seen. Raises `ClusterError` where nobody answers."""
    look = _Look(cluster)
    skew, namespace = _skew(cluster), cluster.namespace
    place = look.get(f"/api/v1/namespaces/{namespace}", "the namespace")
    nodes = look.items(_NODES, None)
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
        gpu_nodes=None if nodes is None else sum(map(_has_gpu, nodes)),
        gpu_allocatable=None if nodes is None else sum(map(_offers, nodes)),
        gpu_wanted=gpu_wanted,
        quotas=tuple(_quota_facts(look.items(_QUOTAS, namespace) or ())),
        pod_security=str(((place or {}).get("metadata") or {}).get("labels", {}).get(_ENFORCED, "")),
        webhooks_down=tuple(_webhooks_down(look)),
        image_errors=tuple(_image_errors(look.items(PODS, namespace) or ())),
        skew_seconds=skew,
    )
    return _certain(facts, look), look.unseen


def preflight(cluster: Cluster, but: Container[str] = ()) -> None:
    """Say on standard error what will stand in the way, with the rules of `dynamo doctor`; it refuses nothing.

    `but` are codes that the command mends itself, or refuses with a sentence of its own.
    """
    seen = try_to(lambda: cluster_facts(cluster), [])
    for finding in report_of([], rules.findings(seen[0]) if seen else ()).findings:
        if finding.code not in but:
            click.echo(f"warning: {finding.what}: {finding.cause}. Mend it: {finding.mend}", err=True)


def _certain(facts: ClusterFacts, look: _Look) -> ClusterFacts:
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


def _crd_versions(look: _Look) -> tuple[str, ...] | None:
    crd = look.get(_CRDS.path(name=CRD), "the CRD")
    if crd is not None:
        return tuple(v["name"] for v in crd["spec"]["versions"] if v.get("served"))
    if not any(text.startswith("the CRD") for text in look.unseen):
        return ()
    group = look.get(f"/apis/{PIPELINES.group}", "the API group")  # everybody may ask for it
    return tuple(v["version"] for v in (group or {}).get("versions") or [])


def _operators(look: _Look, skew: float) -> tuple[OperatorFact, ...] | None:
    live = look.items(resource_of("Deployment"), None, labelSelector=_OPERATORS)
    return None if live is None else tuple(_operator(look, deployment, skew) for deployment in live[:5])


def _operator(look: _Look, deployment: Live, skew: float) -> OperatorFact:
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


def _has_gpu(node: Live) -> bool:
    labels = node["metadata"].get("labels") or {}
    return bool(_offers(node)) or any(labels.get(label) == "true" for label in _GPU_LABELS)


def _offers(node: Live) -> int:
    return int(_amount(str(((node.get("status") or {}).get("allocatable") or {}).get(_GPU, "0"))))


def _quota_facts(quotas: Iterable[Live]) -> Iterable[QuotaFact]:
    for quota in quotas:
        status = quota.get("status") or {}
        for resource, hard in (status.get("hard") or {}).items():
            used = str((status.get("used") or {}).get(resource, "0"))
            spent = _amount(used) >= _amount(str(hard)) > 0  # of 0 nothing was to be had from the beginning
            yield QuotaFact(quota["metadata"]["name"], resource, used, str(hard), spent)


def _amount(text: str) -> float:
    """Return `1500m`, `2Gi` or `3` as a number; 0 for what is none."""
    digits = text.rstrip("mkMGTPEi")
    try:
        return float(digits) * _SUFFIXES.get(text[len(digits) :], 1.0)
    except ValueError:
        return 0.0


def _webhooks_down(look: _Look) -> Iterable[tuple[str, str]]:
    for resource in _WEBHOOKS:
        for configuration in look.items(resource, None) or ():
            for hook in configuration.get("webhooks") or ():
                service = (hook.get("clientConfig") or {}).get("service")
                if service and hook.get("failurePolicy", "Fail") == "Fail" and not _answers(look, service):
                    yield str(hook["name"]), f"{service['namespace']}/{service['name']}"


def _answers(look: _Look, service: dict[str, Any]) -> bool:
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
    look = _Look(cluster)
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
