"""What a pipeline leaves behind: in its namespace and in the platform's etcd."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
from e2e.cluster.installation import Platform
from e2e.namespace.namespace import Namespace

ALL_KEYS = base64.b64encode(b"\0").decode()
MADE_BY_KUBERNETES = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
UNCOUNTED = {"events", "events.events.k8s.io", "bindings", "localsubjectaccessreviews.authorization.k8s.io"}


def in_namespace(namespace: Namespace) -> list[str]:
    """Every object of every kind that can be listed, but those that Kubernetes puts into each namespace."""
    kinds = namespace.kubectl("api-resources", "--namespaced", "--verbs=list", "-o", "name").split()
    listed = namespace.kubectl("get", ",".join(k for k in kinds if k not in UNCOUNTED), "-o", "json")
    found = [(item["kind"], item["metadata"]["name"]) for item in json.loads(listed)["items"]]
    return [f"{kind}/{name}" for kind, name in found if (kind, name) not in MADE_BY_KUBERNETES]


def in_etcd(platform: Platform, dynamo_namespace: str) -> list[str]:
    """Keys of a Dynamo namespace."""
    with _pod(platform, "etcd", 2379) as url:
        body = {"key": ALL_KEYS, "range_end": ALL_KEYS, "keys_only": True}
        answer = httpx.post(f"{url}/v3/kv/range", json=body, headers=_signed_in(platform, url), timeout=20)
        answer.raise_for_status()
    keys = [base64.b64decode(pair["key"]).decode() for pair in answer.json().get("kvs", [])]
    return [key for key in keys if dynamo_namespace in key.split("/")]


def _signed_in(platform: Platform, url: str) -> dict[str, str]:
    """Headers for etcd's own administrator, where the chart has given it one."""
    found = Namespace(platform.cluster, platform.namespace).list("v1/Secret")
    secret = next((s["data"] for s in found if s["metadata"]["name"].endswith("-etcd-auth")), None)
    if secret is None:
        return {}
    name, password = (base64.b64decode(secret[key]).decode() for key in ("username", "password"))
    answer = httpx.post(f"{url}/v3/auth/authenticate", json={"name": name, "password": password}, timeout=20)
    return {"Authorization": answer.raise_for_status().json()["token"]}


def _pod(platform: Platform, server: str, port: int) -> Any:
    here = Namespace(platform.cluster, platform.namespace)
    (pod,) = here.list("v1/Pod", f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component={server}")
    return here.reach(f"pod/{pod['metadata']['name']}", port)
