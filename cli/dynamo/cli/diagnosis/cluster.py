"""What can be wrong with a cluster: facts, and a rule for each kind of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis import devices
from dynamo.cli.diagnosis.devices import Demand, NodeDevices
from dynamo.cli.diagnosis.findings import Finding, Weight

MOST_SKEW: Final = 30.0
_INSTALL: Final = "dynamo install"


@dataclass(frozen=True)
class OperatorFact:
    """The operator's Deployment and who leads."""

    namespace: str
    wanted: int
    ready: int
    waits: str = ""
    """Why its first pod that isn't ready waits."""
    leader: str = ""
    lease_age_seconds: float = 0.0
    lease_seconds: float = 15.0


@dataclass(frozen=True)
class QuotaFact:
    """One limit of one ResourceQuota."""

    name: str
    resource: str
    used: str
    hard: str
    spent: bool
    left: float = 0.0


@dataclass(frozen=True)
class ClusterFacts:
    """Everything that the rules look at; None is what couldn't be seen."""

    label: str
    namespace: str
    namespace_exists: bool | None = True
    denied: tuple[str, ...] = ()
    crd_versions: tuple[str, ...] | None = ("v1alpha1",)
    """Versions that the cluster serves; empty where there is no CRD."""
    crd_wanted: str = "v1alpha1"
    operators: tuple[OperatorFact, ...] | None = ()
    default_storage: bool | None = True
    nodes: int | None = None
    nodes_ready: int | None = None
    dns_answers: bool | None = True
    """A pod of the cluster's DNS is ready."""
    devices: tuple[NodeDevices, ...] = ()
    demands: tuple[Demand, ...] = ()
    """Devices that the pipelines of the namespace, or of a file, ask for."""
    egress_denied_by: str = ""
    """The policy that lets no pod of the namespace send anything, where none allows ours."""
    quotas: tuple[QuotaFact, ...] = ()
    pod_security: str = ""
    webhooks_down: tuple[tuple[str, str], ...] = ()
    """Webhooks that fail closed, and the Service of each that has no endpoint."""
    image_errors: tuple[tuple[str, str], ...] = ()
    """Pods, and what the kubelet says of their images."""
    skew_seconds: float | None = None


def findings(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield all that is wrong; what stops everything comes first."""
    for rule in _RULES:
        yield from rule(facts)


def _rights(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.namespace_exists is False:
        yield Finding(
            "no-namespace", f"there is no namespace {facts.namespace}", f"{facts.label} doesn't have it",
            f"kubectl create namespace {facts.namespace}",
        )  # fmt: skip
    if facts.denied:
        first = facts.denied[0].split(" ")
        can_i = f"kubectl auth can-i {first[0]} {first[1]} -n {facts.namespace}"
        yield Finding(
            "no-rights", f"you may not use pipelines in namespace {facts.namespace}", "; ".join(facts.denied[:6]),
            f"an administrator grants it: kubectl create rolebinding dynamo-edit --clusterrole=edit --user=YOU "
            f"-n {facts.namespace} (check: {can_i})",
        )  # fmt: skip


def _crd(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.crd_versions is None:
        return
    if not facts.crd_versions:
        yield Finding("no-crd", "the cluster doesn't know DynamoPipeline", "its CRD isn't installed", _INSTALL)
    elif facts.crd_wanted not in facts.crd_versions:
        served = ", ".join(facts.crd_versions)
        yield Finding(
            "old-crd", "the CRD is of another version",
            f"the cluster serves {served}, and this dynamo writes {facts.crd_wanted}", f"{_INSTALL} (it upgrades)",
        )  # fmt: skip


def _operator(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.operators is None:
        return
    if not facts.operators and facts.crd_versions:
        yield Finding(
            "no-operator", "no operator is installed", "the CRD is there, but nothing carries pipelines out", _INSTALL
        )
    for operator in facts.operators:
        where = f"-n {operator.namespace}"
        if operator.wanted == 0:
            yield Finding(
                "operator-off", "the operator is switched off", f"its Deployment in {operator.namespace} wants 0 pods",
                f"{_INSTALL} {where} --set operator.replicaCount=1",
            )  # fmt: skip
        elif operator.ready == 0:
            yield Finding(
                "operator-down", "the operator doesn't run", operator.waits or "none of its pods is ready",
                f"kubectl logs {where} -l app.kubernetes.io/component=operator --tail 50, or repair it: {_INSTALL}",
            )  # fmt: skip
        elif operator.lease_age_seconds > 4 * operator.lease_seconds:
            yield Finding(
                "no-leader", "no operator leads",
                f"{operator.leader or 'the last leader'} renewed its lease {operator.lease_age_seconds:.0f} s ago",
                f"kubectl rollout restart deployment {where} -l app.kubernetes.io/component=operator",
            )  # fmt: skip


def _images(facts: ClusterFacts) -> Iterator[Finding]:
    for pod, said in facts.image_errors[:5]:
        yield Finding(
            "image-pull", f"the image of pod {pod} can't be pulled", said,
            f"kubectl describe pod {pod} -n {facts.namespace}; correct the image, or name a pull secret "
            "(kubectl create secret docker-registry …)",
        )  # fmt: skip


def _quotas(facts: ClusterFacts) -> Iterator[Finding]:
    for quota in facts.quotas:
        wanted = next((d for d in facts.demands if quota.resource == f"requests.{d.resource}"), None)
        if quota.spent or (wanted and quota.left < wanted.total):
            yield Finding(
                "quota", f"the quota {quota.name} is spent: {quota.resource}",
                f"{quota.used} of {quota.hard} is used in namespace {facts.namespace}",
                f"kubectl edit resourcequota {quota.name} -n {facts.namespace}, or dynamo delete another pipeline",
            )  # fmt: skip


def _policies(facts: ClusterFacts) -> Iterator[Finding]:
    for name, service in facts.webhooks_down[:5]:
        yield Finding(
            "webhook-down", f"the webhook {name} refuses every object",
            f"it fails closed, and its Service {service} has no endpoint",
            f"kubectl get endpoints -n {service.partition('/')[0]}; start it, or remove the webhook {name}",
        )  # fmt: skip
    if facts.egress_denied_by:
        yield Finding(
            "egress-denied", f"pods of namespace {facts.namespace} may not send anything",
            f"the NetworkPolicy {facts.egress_denied_by} denies it: workers can't reach etcd, NATS or a model hub",
            "let the platform allow what ours need (dynamo install --set pipelines.restrictEgress=true), or: "
            f"kubectl edit networkpolicy {facts.egress_denied_by} -n {facts.namespace}",
            Weight.WARNING,
        )  # fmt: skip
    if facts.pod_security == "restricted" and facts.demands:
        yield Finding(
            "pod-security", f"namespace {facts.namespace} enforces the Pod Security level restricted",
            "images of engines that run as root are refused there",
            f"kubectl label namespace {facts.namespace} pod-security.kubernetes.io/enforce=baseline --overwrite",
            Weight.WARNING,
        )  # fmt: skip


def _gpus(facts: ClusterFacts) -> Iterator[Finding]:
    yield from devices.cluster_findings(facts.devices, facts.demands)


def _nodes(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.nodes_ready == 0:
        had = f"none of its {facts.nodes} nodes is ready" if facts.nodes else "it has no node"
        yield Finding("no-ready-node", "the cluster has no node that takes pods", had, "kubectl describe nodes")
    if facts.dns_answers is False and facts.nodes_ready:
        yield Finding(
            "no-dns", "names of Services aren't found in the cluster", "no pod of kube-dns (CoreDNS) is ready",
            "kubectl rollout restart deployment coredns -n kube-system",
        )  # fmt: skip


def _storage(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.default_storage is False:
        yield Finding(
            "no-storage-class", "no storage class is the default", "claims that name none wait forever",
            "kubectl patch storageclass NAME -p "
            '\'{"metadata":{"annotations":{"storageclass.kubernetes.io/is-default-class":"true"}}}\'',
            Weight.WARNING,
        )  # fmt: skip


def _clock(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.skew_seconds is not None and abs(facts.skew_seconds) > MOST_SKEW:
        yield Finding(
            "clock-skew", "the clocks here and in the cluster differ",
            f"{abs(facts.skew_seconds):.0f} s between this machine and the API server", "sudo timedatectl set-ntp true",
            Weight.WARNING,
        )  # fmt: skip


_RULES: Final[tuple[Callable[[ClusterFacts], Iterator[Finding]], ...]] = (
    _rights, _crd, _nodes, _operator, _policies, _images, _quotas, _gpus, _storage, _clock,
)  # fmt: skip
