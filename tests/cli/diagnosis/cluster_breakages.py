"""What is broken in a cluster, as the objects that its API server then has; and what `dynamo doctor` must say first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tests.cli.diagnosis.cluster_server import DEPLOYMENTS, HEALTHY, PIPELINE, READY

_CRD: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/dynamopipelines.dynamo.dev"
_NAMESPACE: Final = "/api/v1/namespaces/serving"
_PODS: Final = f"{_NAMESPACE}/pods"
_EVENTS: Final = f"{_NAMESPACE}/events"
_QUOTAS: Final = f"{_NAMESPACE}/resourcequotas"
_NODES: Final = "/api/v1/nodes"
_GPU: Final = "nvidia.com/gpu"
_WANTS_GPUS: Final = {"/apis/dynamo.dev/v1alpha1/namespaces/serving/dynamopipelines": {"items": [{
    "metadata": {"name": "llama", "namespace": "serving"},
    "spec": {"model": {"source": "hf://org/model"}, "components": [{"engine": "vllm", "tensorParallelSize": 4}]},
}]}}  # fmt: skip


class Breakage(NamedTuple):
    """Objects by path (None: not there), and what the first finding must hold."""

    objects: Mapping[str, Any]
    code: str
    cause: str
    mend: str
    name: str = ""
    """Of the pipeline that is asked about; empty: the cluster."""
    rights: bool = True
    skew: float = 0.0


def _operator(**status: Any) -> Any:
    (live,) = HEALTHY[DEPLOYMENTS]["items"]
    return {DEPLOYMENTS: {"items": [{**live, **status}]}}


def _node(gpus: int = 0, labels: Mapping[str, str] | None = None, ready: bool = True) -> Any:
    status = {**(READY if ready else {"conditions": [{"type": "Ready", "status": "False"}]})}
    return {
        "metadata": {"name": "n", "labels": dict(labels or {})},
        "status": {**status, "allocatable": {_GPU: str(gpus)}},
    }


def _nodes(*nodes: Any) -> dict[str, Any]:
    return {_NODES: {"items": list(nodes)}}


def _waiting(reason: str, message: str) -> Any:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def _pod(*containers: Any, conditions: Any = ()) -> dict[str, Any]:
    statuses = [{"name": "worker", **container} for container in containers]
    return {_PODS: {"items": [{
        "metadata": {"name": "llama-worker-1a2b3c-0", "labels": {}},
        "status": {"containerStatuses": statuses, "conditions": list(conditions)},
    }]}}  # fmt: skip


def _unscheduled(message: str) -> dict[str, Any]:
    return _pod(conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ])  # fmt: skip


def _event(reason: str, message: str) -> dict[str, Any]:
    about = {"kind": "StatefulSet", "name": "llama-worker-1a2b3c", "namespace": "serving"}
    return {_EVENTS: {"items": [{
        "metadata": {"name": "e"}, "type": "Warning", "involvedObject": about, "reason": reason, "message": message,
        "lastTimestamp": "2026-11-24T10:00:00Z",
    }]}}  # fmt: skip


_LIVE: Final = {PIPELINE: {
    "metadata": {"name": "llama", "namespace": "serving", "generation": 1},
    "status": {"observedGeneration": 1, "conditions": [
        {"type": "Ready", "status": "False", "reason": "WorkersNotReady", "message": "0 of 1 workers are ready"}]},
}}  # fmt: skip


def _of(objects: Mapping[str, Any], code: str, cause: str, mend: str) -> Breakage:
    return Breakage({**_LIVE, **objects}, code, cause, mend, "llama")


_LEASE: Final = {"/apis/coordination.k8s.io/v1/namespaces/dynamo/leases": {"items": [{
    "metadata": {"name": "dynamo-operator"},
    "spec": {"holderIdentity": "op-0", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"},
}]}}  # fmt: skip
_HOOK: Final = {"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {"items": [{"webhooks": [{
    "name": "p.example.com", "failurePolicy": "Fail",
    "clientConfig": {"service": {"namespace": "policy", "name": "hook"}},
}]}]}}  # fmt: skip
_DENIES: Final = {"/apis/networking.k8s.io/v1/namespaces/serving/networkpolicies": {"items": [{
    "metadata": {"name": "deny-all"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}]}}  # fmt: skip
_DNS: Final = {"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": {"items": [{
    "endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": False}}],
}]}}  # fmt: skip


def _quota(resource: str, used: str, hard: str) -> dict[str, Any]:
    return {
        _QUOTAS: {
            "items": [{"metadata": {"name": "team"}, "status": {"hard": {resource: hard}, "used": {resource: used}}}]
        }
    }


CLUSTER: Final[dict[str, Breakage]] = {
    "no rights": Breakage({}, "no-rights", "create dynamopipelines", "kubectl create rolebinding", rights=False),
    "namespace missing": Breakage(
        {_NAMESPACE: None}, "no-namespace", "doesn't have it", "kubectl create namespace serving"
    ),
    "CRD missing": Breakage({_CRD: None}, "no-crd", "isn't installed", "dynamo install"),
    "CRD too old": Breakage(
        {_CRD: {"spec": {"versions": [{"name": "v1alpha0", "served": True}]}}}, "old-crd", "v1alpha0", "dynamo install"
    ),
    "no node is ready": Breakage(
        _nodes(_node(ready=False)), "no-ready-node", "none of its 1 nodes", "kubectl describe nodes"
    ),
    "DNS is down": Breakage(_DNS, "no-dns", "CoreDNS", "kubectl rollout restart deployment coredns"),
    "operator not installed": Breakage({DEPLOYMENTS: None}, "no-operator", "nothing carries", "dynamo install"),
    "operator crashes": Breakage(
        {
            **_operator(status={"readyReplicas": 0}),
            "/api/v1/namespaces/dynamo/pods": {
                "items": [
                    {
                        "metadata": {"name": "op-0", "labels": {}},
                        "status": {
                            "containerStatuses": [{"name": "operator", **_waiting("CrashLoopBackOff", "back-off 5m")}]
                        },
                    }
                ]
            },
        },
        "operator-down",
        "CrashLoopBackOff",
        "kubectl logs -n dynamo",
    ),
    "operator switched off": Breakage(_operator(spec={"replicas": 0}), "operator-off", "wants 0", "replicaCount=1"),
    "nobody leads": Breakage(_LEASE, "no-leader", "op-0", "kubectl rollout restart"),
    "webhook down": Breakage(_HOOK, "webhook-down", "policy/hook", "kubectl get endpoints -n policy"),
    "egress denied": Breakage(_DENIES, "egress-denied", "deny-all", "restrictEgress"),
    "quota spent": Breakage(
        _quota("requests.cpu", "2000m", "2"), "quota", "2000m of 2", "kubectl edit resourcequota team"
    ),
    "quota of no GPU": Breakage(
        {**_WANTS_GPUS, **_nodes(_node(8)), **_quota(f"requests.{_GPU}", "0", "0")}, "quota", "0 of 0", "resourcequota"
    ),
    "no device plugin": Breakage(
        _nodes(_node(labels={"nvidia.com/gpu.present": "true"})), "no-device-plugin", "device plugin", "helm upgrade"
    ),
    "no GPU node": Breakage({**_WANTS_GPUS, **_nodes(_node())}, "no-gpu-nodes", "llama asks for", "llamacpp"),
    "nodes with too few GPUs": Breakage(
        {**_WANTS_GPUS, **_nodes(_node(2), _node(2))}, "gpus-of-a-node", "asks for 4", "tensorParallelSize to 2"
    ),
    "Pod Security with GPUs": Breakage(
        {
            **_WANTS_GPUS,
            **_nodes(_node(8)),
            _NAMESPACE: {
                "metadata": {"name": "serving", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
            },
        },
        "pod-security",
        "root",
        "kubectl label namespace serving",
    ),
    "no storage class": Breakage(
        {"/apis/storage.k8s.io/v1/storageclasses": {"items": []}}, "no-storage-class", "wait forever", "kubectl patch"
    ),
    "clocks differ": Breakage({}, "clock-skew", "s between", "timedatectl", skew=600.0),
    "wrong image": _of(
        _pod(_waiting("ImagePullBackOff", 'Back-off pulling image "nowhere/x:1"')), "image-pull", "nowhere/x:1", "image"
    ),
    "out of memory": _of(
        _pod(
            {
                **_waiting("CrashLoopBackOff", "back-off"),
                "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }
        ),
        "out-of-memory",
        "OOMKilled",
        "resources.memory",
    ),
    "no free GPU": _of(
        _unscheduled("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), "no-gpu-nodes", "Insufficient", "nodes"
    ),
    "no room for a pod": _of(
        _unscheduled("0/3 nodes are available: 3 Insufficient memory."), "no-room", "memory", "resources"
    ),
    "claim without a volume": _of(
        _unscheduled("pod has unbound immediate PersistentVolumeClaims"), "no-volume", "unbound", "kubectl get pvc"
    ),
    "Secret missing": _of(
        _pod(_waiting("CreateContainerConfigError", 'secret "hf" not found')),
        "no-secret",
        '"hf"',
        "kubectl create secret",
    ),
    "quota refuses the pod": _of(
        _event("FailedCreate", 'pods "llama-0" is forbidden: exceeded quota: team, requested: pods=1'),
        "quota",
        "exceeded quota",
        "kubectl describe resourcequota",
    ),
    "Pod Security refuses the pod": _of(
        _event("FailedCreate", 'pods "llama-0" is forbidden: violates PodSecurity "restricted:latest"'),
        "pod-security",
        "violates",
        "kubectl label namespace",
    ),
    "webhook refuses the pod": _of(
        _event("FailedCreate", 'Internal error: failed calling webhook "p.example.com"'),
        "webhook",
        "p.example.com",
        "kubectl",
    ),
    "gated model": _of(
        _pod(_waiting("CrashLoopBackOff", "hub: 401: org/model is gated, set HF_TOKEN")),
        "bad-token",
        "gated",
        "tokenSecret",
    ),
    "worker ends at once": _of(
        _pod(_waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")),
        "crash",
        "CrashLoop",
        "--previous",
    ),
    "nobody looks at it": Breakage(
        {PIPELINE: {"metadata": {"name": "llama", "namespace": "serving", "generation": 1}}},
        "unseen",
        "operator",
        "doctor",
        "llama",
    ),
}
