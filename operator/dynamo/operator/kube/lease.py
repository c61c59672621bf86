"""Which replica leads: a Lease, as controller-runtime's (15 s / 10 s / 2 s). The decision is pure.

Clocks of machines differ, so a lease is judged by how long *we* have seen it unchanged, never
by the time that stands in it. A leader that couldn't renew in time stops at once, five
seconds before anybody may follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from dynamo.operator.kube.resources import LEASES

DURATION = 15.0
"""Unchanged for so long, a lease is free."""
DEADLINE = 10.0
"""Not renewed for so long, a leader stops."""
PERIOD = 2.0
"""Between two reads of the lease."""

Lease = Mapping[str, Any]


@dataclass(frozen=True)
class LeaseObservation:
    """The lease as seen last and since when, on our own clock."""

    mark: tuple[str, str] | None = None
    since: float = 0.0


def observed(lease: Lease | None, before: LeaseObservation, now: float) -> LeaseObservation:
    """Return the observation after another read of the lease."""
    spec = (lease or {}).get("spec", {})
    mark = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")) if lease else None
    return before if mark == before.mark and lease else LeaseObservation(mark, now)


def may_write(lease: Lease | None, observation: LeaseObservation, me: str, now: float) -> bool:
    """Return whether to renew or to take it: it is ours, free, nobody's, or not there."""
    holder = (lease or {}).get("spec", {}).get("holderIdentity")
    return not holder or holder == me or now - observation.since >= DURATION


def claimed(lease: Lease | None, me: str, wall: datetime, namespace: str, name: str) -> dict[str, Any]:
    """Return the lease that says that we lead; with its resourceVersion, so that only one of two can write it."""
    spec = dict((lease or {}).get("spec", {}))
    text = wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if spec.get("holderIdentity") != me:
        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec["acquireTime"] = text
    spec |= {"holderIdentity": me, "leaseDurationSeconds": int(DURATION), "renewTime": text}
    metadata = (lease or {}).get("metadata") or {"namespace": namespace, "name": name}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": dict(metadata), "spec": spec}


def term(lease: Lease) -> int:
    """Return how often it has changed hands."""
    return int(lease["spec"].get("leaseTransitions") or 0)


def released(lease: Lease) -> dict[str, Any]:
    """Return the lease given back, so that the next leader needn't wait."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def is_leading(renewed: float | None, now: float) -> bool:
    """Return whether we may still act as the leader."""
    return renewed is not None and now - renewed < DEADLINE


_ALONE = "alone"
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_WRITTEN = re.compile(rf"{_NAME}/{_NAME}(/{_ALONE})?")


class Installation(NamedTuple):
    """An operator with its replicas."""

    namespace: str
    name: str
    """Of its lease."""
    elects: bool = True
    """Its leader renews the lease; a single replica may do without."""

    def __str__(self) -> str:
        return "/".join((self.namespace, self.name) if self.elects else (self.namespace, self.name, _ALONE))

    @classmethod
    def of(cls, text: str) -> Installation | None:
        """Return the installation that a status names; None for what can't be a name: it goes into a request's path."""
        if not _WRITTEN.fullmatch(text):
            return None
        namespace, _, rest = text.partition("/")
        name, _, how = rest.partition("/")
        return cls(namespace, name, how != _ALONE)

    def is_same(self, other: Installation) -> bool:
        """Return whether both are the same, however each makes sure of being the only one."""
        return self[:2] == other[:2]
