"""Which ready pods the frontends can't reach: `Reachability`, fed with what frontends say in `/health`. Pure.

A pod's readiness is what its own process says, and Kubernetes needs 40 to 50 s to find out
that a node doesn't answer any more. Frontends know within seconds, since they route. A pod
counts as lost only when a frontend has named it before: what never registers under its pod's
name (a user's own file without a model, the followers of a group) is left to Kubernetes. And only
when two polls agree: a worker that leaves, or is busy for a moment, is no news.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class Instance(msgspec.Struct, frozen=True):
    """The fields that are read of an entry of `instances`."""

    host: str = ""
    routable: bool = False


class HealthReport(msgspec.Struct, frozen=True):
    """The fields that are read of `/health`."""

    instances: tuple[Instance, ...] = ()

    @property
    def registered(self) -> frozenset[str]:
        """Return the pods that have registered."""
        return frozenset(instance.host for instance in self.instances if instance.host)

    @property
    def routable_pods(self) -> frozenset[str]:
        """Return the pods that a request could go to."""
        return frozenset(instance.host for instance in self.instances if instance.routable and instance.host)


class Reachability:
    """Tracks which pods of a pipeline the frontends can't reach."""

    def __init__(self) -> None:
        self.lost: frozenset[str] = frozenset()
        """Ready pods that some frontend can't reach."""
        self._known: frozenset[str] = frozenset()
        self._suspects: frozenset[str] = frozenset()

    def update(self, ready: Collection[str], reports: Sequence[HealthReport]) -> bool:
        """Take in reports about pods that were ready before the poll; True where `lost` changed.

        Without an answer nothing is known, and nothing held against anybody.
        """
        routable_pods = [report.routable_pods for report in reports]
        registered = frozenset[str]().union(*(report.registered for report in reports))
        unreachable = frozenset(
            pod
            for pod in ready
            if (pod in self._known or pod in registered) and not all(pod in pods for pods in routable_pods)
        )
        before, self.lost = self.lost, unreachable & self._suspects
        self._suspects = unreachable
        self._known = registered | self._known.intersection(ready)
        return self.lost != before
