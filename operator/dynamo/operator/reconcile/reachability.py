"""Which ready pods the frontends can't reach: `Reach`, fed with what frontends say in `/health`. Pure.

A pod's readiness is what its own process says, and Kubernetes needs 40 to 50 s to find out
that a node doesn't answer any more. Frontends know within seconds, since they route. A pod
counts as lost only when a frontend has named it before: what never registers under its pod's
name (a user's own file without a model, the followers of a group) is left to Kubernetes. And only
when it is said twice: a worker that leaves, or is busy for a moment, is no news.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class Instance(msgspec.Struct, frozen=True):
    """What is read of one entry of `instances`."""

    host: str = ""
    routable: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What is read of `/health`."""

    instances: tuple[Instance, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """Pods that have registered."""
        return frozenset(one.host for one in self.instances if one.host)

    @property
    def reached(self) -> frozenset[str]:
        """Pods that a request could go to."""
        return frozenset(one.host for one in self.instances if one.routable and one.host)


class Reach:
    """Of one pipeline."""

    def __init__(self) -> None:
        self.lost: frozenset[str] = frozenset()
        """Ready pods that some frontend can't reach."""
        self._known: frozenset[str] = frozenset()
        self._suspects: frozenset[str] = frozenset()

    def answered(self, ready: Collection[str], answers: Sequence[Answer]) -> bool:
        """What frontends say of pods that were ready before they were asked; True where `lost` changed.

        Without an answer nothing is known, and nothing held against anybody.
        """
        reached = [answer.reached for answer in answers]
        named = frozenset[str]().union(*(answer.named for answer in answers))
        lacking = frozenset(
            pod for pod in ready if (pod in self._known or pod in named) and not all(pod in one for one in reached)
        )
        before, self.lost = self.lost, lacking & self._suspects
        self._suspects = lacking
        self._known = named | self._known.intersection(ready)
        return self.lost != before
