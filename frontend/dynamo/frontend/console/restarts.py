"""How often workers were started anew, as far as this frontend has seen. Pure; it hears what the registry says.

A process that comes back has another id. One that comes to the place (endpoint and host) of one that is gone follows
it: in Kubernetes a host is a pod, so only the same pod's containers follow each other.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from dynamo.runtime.names import EndpointPath, InstanceKey

MOST_GONE: Final = 1024
Place = tuple[EndpointPath, str]


class Restarts:
    """Counts restarts of the workers that are there; a listener of the registry's view."""

    def __init__(self) -> None:
        self._present: dict[InstanceKey, tuple[Place, int]] = {}
        self._gone: OrderedDict[InstanceKey, tuple[Place, int]] = OrderedDict()

    def of(self, key: InstanceKey) -> int:
        """Return how often a worker was started anew."""
        return self._present[key][1] if key in self._present else 0

    def joined(self, instance: Any) -> None:
        """Hear of a worker that is there; it follows the one of its place that went first."""
        key, place = instance.key, (instance.key.path, instance.host)
        if key in self._present:
            return
        followed = next((gone for gone, (where, _) in self._gone.items() if where == place), None)
        self._present[key] = (place, 0 if followed is None else self._gone.pop(followed)[1] + 1)

    def changed(self, instance: Any) -> None:
        """Hear that a worker says something else of itself."""

    def left(self, key: InstanceKey) -> None:
        """Hear that a worker is gone."""
        if (known := self._present.pop(key, None)) is None:
            return
        self._gone[key] = known
        while len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)
