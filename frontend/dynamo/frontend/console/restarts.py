"""How often workers were started anew, as far as this frontend has seen. It hears what the registry says.

A process that comes back has another id. One that comes to the place (endpoint and host) of one that is gone follows
it: in Kubernetes a host is a pod, so only the same pod's containers follow each other. A worker that was killed is
missed seconds later, when its follower may be there already.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.runtime.names import EndpointPath, InstanceKey

MOST_GONE: Final = 1024
MISSED_AFTER: Final = 15.0
"""Seconds after its death until a worker is missed, at most: its lease, and the pings after that."""


class Life(msgspec.Struct):
    """A worker's place, when it came there, and what it follows."""

    place: tuple[EndpointPath, str]
    since: float
    restarts: int = 0
    follows: bool = False


class Restarts:
    """Counts restarts of the workers that are there; a listener of the registry's view."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._present: dict[InstanceKey, Life] = {}
        self._gone: OrderedDict[InstanceKey, Life] = OrderedDict()

    def of(self, key: InstanceKey) -> int:
        """Return how often a worker was started anew."""
        return self._present[key].restarts if key in self._present else 0

    def joined(self, instance: Any) -> None:
        """Hear of a worker that is there; it follows the one of its place that went first."""
        if instance.key in self._present:
            return
        life = self._present[instance.key] = Life((instance.key.path, instance.host), self._clock())
        before = next((key for key, gone in self._gone.items() if gone.place == life.place), None)
        if before is not None:
            _follow(life, self._gone.pop(before))

    def changed(self, instance: Any) -> None:
        """Hear that a worker says something else of itself."""

    def left(self, key: InstanceKey) -> None:
        """Hear that a worker is gone: the youngest of its place follows it, if it came just now, or the next one."""
        if (life := self._present.pop(key, None)) is None:
            return
        since = max(life.since, self._clock() - MISSED_AFTER)
        young = [
            other for other in self._present.values()
            if other.place == life.place and other.since > since and not other.follows
        ]  # fmt: skip
        if young:
            _follow(max(young, key=lambda other: other.since), life)
            return
        self._gone[key] = life
        while len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)


def _follow(life: Life, before: Life) -> None:
    life.restarts, life.follows = before.restarts + 1, True
