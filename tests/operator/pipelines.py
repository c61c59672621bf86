"""Pipelines for the operator's tests: one with every field, and strategies for valid and wild ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from dynamo.operator.api import rules
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND, DynamoPipeline, Engine

UID = "0f7c2f6e-9d3c-4a56-8d06-2f1f5a4a5f11"

Spec = dict[str, Any]


def body(spec: Spec, name: str = "llama") -> dict[str, Any]:
    """The object as the API server has it."""
    metadata = {"name": name, "namespace": "serving", "uid": UID, "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def pipeline(spec: Spec, name: str = "llama") -> DynamoPipeline:
    """Parsed, and checked to be valid."""
    found = DynamoPipeline.model_validate_json(json.dumps(body(spec, name)))
    assert rules.check(found) == []
    return found


SMALLEST: Spec = {"components": [{"engine": "mocker"}]}

PLACEMENT: Spec = {
    "image": "lab/vllm:1@sha256:0",
    "nodeSelector": {"gpu.example.com/product": "H100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "runtimeClassName": "nvidia",
    "priorityClassName": "serving",
    "schedulerName": "volcano",
    "queueName": "gpus",
    "gangScheduling": True,
    "resourceClaims": [
        {"name": "link", "resourceClaimName": "fabric"},
        {"name": "gpus", "resourceClaimTemplateName": "h100", "request": "gpu"},
    ],
    "startupTimeoutSeconds": 1800,
}  # fmt: skip
"""Every field of `api/placement.py`, for a worker of several nodes."""

FULL: Spec = {
    "namespace": "shared",
    "restart": "2026-11-21",
    "gracefulShutdownTimeoutSeconds": 900,
    "model": {
        "source": "hf://org/repo@v1",
        "name": "llama",
        "contextLength": 8192,
        "chatTemplate": "{{ messages }}",
        "tokenSecret": {"name": "hf-token", "key": "TOKEN"},
        "cache": {"size": "40Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"},
    },
    "frontend": {
        "replicas": 2,
        "port": 8080,
        "workers": 4,
        "router": {"mode": "kv", "prefillLoadScale": 3, "temperature": 0.5, "useKvEvents": False},
        "migrationLimit": 3,
        "workerWaitTimeoutSeconds": 1.5,
        "console": False,
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "ingress": {
            "host": "llama.example.org",
            "className": "nginx",
            "tlsSecret": "llama-tls",
            "annotations": {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600"},
        },
        "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi", "cpu": 2}},
        "podTemplate": {
            "metadata": {"annotations": {"scrape": "yes"}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "containers": [{"name": "frontend", "env": [{"name": "DYN_LOG", "value": "debug"}]}],
            },
        },
    },
    "components": [
        {"name": "prefill", "role": "prefill", "engine": "vllm", "tensorParallelSize": 2, "replicas": 2},
        {
            "name": "decode",
            "role": "decode",
            "engine": "vllm",
            "tensorParallelSize": 8,
            "nodes": 2,
            "replicas": 2,
            "rollout": {"maxSurge": "25%", "maxUnavailable": 0},
            "engineArgs": {"max-model-len": 8192, "nested": {"text": "$(HOME) 'x'"}},
            "kvCacheBlockSize": 32,
            "env": [
                {"name": "A", "value": "b"},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "c"}}],
            "resources": {"limits": {"memory": "64Gi"}},
            "accelerator": {"resource": "amd.com/gpu", "count": 4},
            "sharedMemory": "16Gi",
            **PLACEMENT,
            "podTemplate": {
                "metadata": {"labels": {"team": "a"}},
                "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "priorityClassName": "high"},
            },
        },
        {
            "name": "code",
            "engine": "python",
            "python": {"file": "code.py", "configMap": "code", "mode": "text"},
        },
    ],
    "runtime": {"etcd": {"endpoints": ["http://etcd:2379"], "secret": "etcd-auth"}, "nats": {"secret": "nats-auth"}},
}

ROUTED: Spec = {
    **SMALLEST,
    "frontend": {
        "httpRoute": {
            "gateway": {"name": "public", "namespace": "gateways", "sectionName": "web"},
            "hostnames": ["llama.example.org", "*.llama.example.org"],
            "https": True,
            "requestTimeout": "0s",
            "annotations": {"a": "b"},
        }
    },
}

_NAMES = st.from_regex(r"\A[a-z]([-a-z0-9]{0,15}[a-z0-9])?\Z").filter(lambda n: n not in rules.RESERVED_NAMES)
_QUANTITIES = st.sampled_from([1, 4, "500m", "40Gi", "1.5", "1e3"])
_RESOURCES = st.fixed_dictionaries(
    {}, optional={"requests": st.fixed_dictionaries({"cpu": _QUANTITIES}), "limits": st.just({"memory": "2Gi"})}
)
_POD_TEMPLATE = st.sampled_from(
    [
        {"metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}}},
        {"spec": {"nodeSelector": {"a": "b"}, "terminationGracePeriodSeconds": 600}},
        {"spec": {"containers": [{"name": "sidecar", "image": "busybox:1"}]}},
        {"spec": {"securityContext": {"fsGroup": 7}, "volumes": [{"name": "v", "emptyDir": {}}]}},
    ]
)
_ENV = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "DYN_LOG"]), "value": st.text(max_size=5)}),
    max_size=3,
    unique_by=lambda v: str(v["name"]),
)


@st.composite
def _components(draw: st.DrawFn) -> Spec:
    engine = draw(st.sampled_from(list(Engine)))
    nodes = draw(st.sampled_from([1, 2])) if engine in rules.MULTI_NODE else 1
    found: Spec = {"name": draw(_NAMES), "engine": str(engine)}
    if engine is Engine.PYTHON:
        found["python"] = draw(st.sampled_from([{"file": "/x.py"}, {"file": "x.py", "configMap": "code"}]))
    found |= {"nodes": nodes, "tensorParallelSize": nodes * draw(st.integers(1, 4))}
    optional: dict[str, st.SearchStrategy[Any]] = {
        "replicas": st.integers(0, 12),
        "rollout": st.sampled_from([{}, {"strategy": "Recreate"}, {"maxSurge": "50%"}]),
        "engineArgs": st.sampled_from([{}, {"a": 1, "b": [1.0, None, "x"]}, {"t": "$(A) $$(B)"}]),
        "env": _ENV,
        "envFrom": st.just([{"secretRef": {"name": "s"}}]),
        "resources": _RESOURCES,
        "sharedMemory": st.sampled_from([1, "2Gi"]),
        "accelerator": st.sampled_from([{}, {"resource": "amd.com/gpu"}, {"count": 0}, {"count": 3}]),
        "podTemplate": _POD_TEMPLATE,
        "image": st.just("lab/worker:1"),
        "tolerations": st.sampled_from([[], [{"operator": "Exists"}], [{"key": "a", "value": "b"}]]),
        "nodeSelector": st.sampled_from([{}, {"a/b": ""}]),
        "resourceClaims": st.sampled_from([[], PLACEMENT["resourceClaims"]]),
        "topologySpreadConstraints": st.just(PLACEMENT["topologySpreadConstraints"]),
        "queueName": st.just("gpus"),
        "startupTimeoutSeconds": st.integers(1, 9),
    }
    return found | draw(st.fixed_dictionaries({}, optional=optional))


_ENTRANCES = st.sampled_from(
    [
        {},
        {"ingress": {}},
        {"ingress": {"host": "*.example.org", "tlsSecret": "t", "annotations": {"a": "b"}}},
        {"httpRoute": {"gateway": {"name": "g"}}},
        ROUTED["frontend"],
    ]
)


def _with_entrance(optional: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Spec]:
    """A frontend with some of the fields, and one way in at most."""
    return st.builds(
        lambda some, entrance: {**some, **entrance}, st.fixed_dictionaries({}, optional=optional), _ENTRANCES
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Valid specs of many shapes."""
    components = draw(st.lists(_components(), min_size=1, max_size=3, unique_by=lambda c: str(c["name"])))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "namespace": st.just("shared"),
        "restart": st.text(max_size=5),
        "frontend": _with_entrance(
            {
                "replicas": st.integers(0, 3),
                "port": st.integers(1, 65535),
                "workers": st.integers(1, 3),
                "resources": _RESOURCES,
                "podTemplate": _POD_TEMPLATE,
                "service": st.sampled_from([{}, {"type": "NodePort", "annotations": {"a": "b"}}]),
            }
        ),
        "runtime": st.sampled_from([{}, {"etcd": {"secret": "e"}}, {"nats": {"url": "nats://n:1", "secret": "n"}}]),
    }
    model = draw(
        st.fixed_dictionaries(
            {"source": st.sampled_from(["hf://org/repo", "pvc://claim/a/b", "/in/the/image", "package://x"])},
            optional={
                "chatTemplate": st.just("{{ x }}"),
                "toolCallParser": st.just("hermes"),
                "reasoningParser": st.just("qwen3"),
                "tokenSecret": st.just({"name": "hf"}),
                "cache": st.sampled_from(
                    [{"size": "1Gi"}, {"size": 5, "accessMode": "ReadWriteOnce"}, {"claimName": "hub"}]
                ),
            },
        )
    )
    spec = {"components": components, "model": model} | draw(st.fixed_dictionaries({}, optional=optional))
    if any("replicas" not in c for c in components):
        spec["replicas"] = draw(st.integers(0, 5))
    return spec


valid_pipelines = st.builds(pipeline, specs(), _NAMES)
