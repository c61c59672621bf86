"""The NATS that the operator makes in a namespace: its pod, its address, and what it says of itself."""

from __future__ import annotations

from typing import Any

import httpx
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object

from dynamo.operator.manifests import nats

SELECTOR = ",".join(f"{key}={value}" for key, value in nats.selector().items())


def url(namespace: Namespace) -> str:
    """Return the address that clients in the cluster use."""
    return f"nats://{nats.host(namespace.name)}:{nats.PORT}"


def pod(namespace: Namespace) -> Object:
    """Return its only pod."""
    (only,) = namespace.list("v1/Pod", SELECTOR)
    return only


def restarts(namespace: Namespace) -> int:
    """Count how often its container was started again."""
    return sum(status["restartCount"] for status in pod(namespace)["status"].get("containerStatuses", []))


def memory(namespace: Namespace) -> int:
    """Return the bytes that the server says it has; 0 where it doesn't answer."""
    try:
        return int(_asked(namespace, "/varz")["mem"])
    except (httpx.HTTPError, TimeoutError):
        return 0


def subjects(namespace: Namespace, dynamo_namespace: str) -> list[str]:
    """List the subjects of a Dynamo namespace that clients listen to; none where the namespace has no NATS."""
    if not namespace.list("v1/Pod", SELECTOR):
        return []
    listed = _asked(namespace, "/subsz?subs=1&limit=100000").get("subscriptions_list", [])
    return [entry["subject"] for entry in listed if dynamo_namespace in entry["subject"].split(".")]


def _asked(namespace: Namespace, path: str) -> Any:
    with namespace.reach(f"deployment/{nats.NAME}", nats.MONITOR_PORT) as address:
        return httpx.get(f"{address}{path}", timeout=20).raise_for_status().json()
