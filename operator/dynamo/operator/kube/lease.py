"""Which replica leads: a Lease, as controller-runtime's (15 s / 10 s / 2 s). The decision is pure.

Clocks of machines differ, so a lease is judged by how long *we* have seen it unchanged, never
by the time that stands in it. A leader that couldn't renew in time stops at once, five
seconds before anybody may follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dynamo.operator.kinds import LEASES

DURATION = 15.0
"""Unchanged for so long, a lease is free."""
DEADLINE = 10.0
"""Not renewed for so long, a leader stops."""
PERIOD = 2.0
"""Between two looks."""

Lease = Mapping[str, Any]


@dataclass(frozen=True)
class Sight:
    """What was seen last and since when, on our own clock."""

    mark: tuple[str, str] | None = None
    since: float = 0.0


def seen(lease: Lease | None, before: Sight, now: float) -> Sight:
    """The sight after another look."""
    spec = (lease or {}).get("spec", {})
    mark = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")) if lease else None
    return before if mark == before.mark and lease else Sight(mark, now)


def may_write(lease: Lease | None, sight: Sight, me: str, now: float) -> bool:
    """Whether to renew or to take it: it is ours, free, nobody's, or not there."""
    holder = (lease or {}).get("spec", {}).get("holderIdentity")
    return not holder or holder == me or now - sight.since >= DURATION


def claimed(lease: Lease | None, me: str, wall: datetime, namespace: str, name: str) -> dict[str, Any]:
    """The lease that says that we lead; with its resourceVersion, so that only one of two can write it."""
    spec = dict((lease or {}).get("spec", {}))
    text = wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if spec.get("holderIdentity") != me:
        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec["acquireTime"] = text
    spec |= {"holderIdentity": me, "leaseDurationSeconds": int(DURATION), "renewTime": text}
    metadata = (lease or {}).get("metadata") or {"namespace": namespace, "name": name}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": dict(metadata), "spec": spec}


def released(lease: Lease) -> dict[str, Any]:
    """The lease given back, so that the next one needn't wait."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def is_leading(renewed: float | None, now: float) -> bool:
    """Whether we may still act as the leader."""
    return renewed is not None and now - renewed < DEADLINE
