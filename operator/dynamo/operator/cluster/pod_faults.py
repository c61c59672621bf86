"""Words for what Kubernetes leaves unsaid of a pod: the claims that it waits for, what a container failed at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from dynamo.operator.manifests.server import CONTAINER as SERVER
from dynamo.operator.manifests.workers import LOADER

Live = Mapping[str, Any]


class StartLimit(NamedTuple):
    """Seconds within which a server has to listen, and when its last probe comes at the earliest."""

    seconds: int
    earliest: int


def claims_of(pod: Live) -> str:
    """Return which claims a pod waits for: the scheduler says only on how many nodes it can't have them.

    One that has a node has its claims.
    """
    if pod.get("spec", {}).get("nodeName"):
        return ""
    claims = [claim for claim in pod.get("spec", {}).get("resourceClaims", ()) if isinstance(claim, Mapping)]
    statuses = pod.get("status", {}).get("resourceClaimStatuses", ())
    made = {status.get("name"): status.get("resourceClaimName") for status in statuses}
    texts = [_claim(claim, made.get(claim.get("name"))) for claim in claims]
    return f"; it waits for {', '.join(texts)}" if texts else ""


def _claim(claim: Live, made: str | None) -> str:
    template = claim.get("resourceClaimTemplateName")
    if template and not made:
        return f"a ResourceClaim of template {template}"
    return f"ResourceClaim {made or claim.get('resourceClaimName')}"


def start_limit(pod: Live) -> StartLimit | None:
    """Return how long its server may take to listen; None where the pod has none."""
    containers = pod.get("spec", {}).get("initContainers", ())
    probe = next((c.get("startupProbe") for c in containers if c.get("name") == SERVER), None)
    if not probe:
        return None
    period, failures = int(probe.get("periodSeconds", 10)), int(probe.get("failureThreshold", 3))
    return StartLimit(period * failures, period * (failures - 1))


def failing(container: str, ended: Live, limit: StartLimit | None) -> str:
    """Return what a container failed at, where its name tells; `limit` is a server's."""
    if container == LOADER:
        return "could not load its model"
    if container != SERVER:
        return ""
    seconds = _seconds(ended)
    if limit is not None and seconds is not None and seconds >= limit.earliest:
        return f"its server did not listen on its port within {limit.seconds} s (startupTimeoutSeconds)"
    return "its server ended"


def _seconds(ended: Live) -> float | None:
    """Return how long a container ran that has ended."""
    try:
        began, end = (datetime.fromisoformat(str(ended[key])) for key in ("startedAt", "finishedAt"))
    except (KeyError, ValueError):
        return None
    return (end - began).total_seconds()
