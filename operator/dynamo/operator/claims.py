"""Which installation serves a pipeline: the one that the pipeline's status names. Pure; `standing.py` asks.

Two operators for the same pipelines, installed by mistake, would undo each other's writes
without end. So the first status says whose it is, and since a status is only written over the
one that was read, of two only one can have said so. The other stands back, and follows when
the first is gone for good: its lease hasn't been renewed for long, or nobody observes edits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from dynamo.operator.dirty import Key
from dynamo.operator.intervals import Intervals
from dynamo.operator.lease import Lease

FIELD = "operator"
"""Of the status."""
_ALONE = "alone"
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_WRITTEN = re.compile(rf"{_NAME}/{_NAME}(/{_ALONE})?")


class Installation(NamedTuple):
    """One operator with its replicas."""

    namespace: str
    name: str
    """Of its lease."""
    elects: bool = True
    """Its leader renews the lease; a single replica may do without."""

    def __str__(self) -> str:
        return "/".join((self.namespace, self.name) if self.elects else (self.namespace, self.name, _ALONE))

    @classmethod
    def of(cls, text: str) -> Installation | None:
        """Out of a status; None where it can't be one's name, which goes into a request's path."""
        if not _WRITTEN.fullmatch(text):
            return None
        namespace, _, rest = text.partition("/")
        name, _, how = rest.partition("/")
        return cls(namespace, name, how != _ALONE)

    def is_same(self, other: Installation) -> bool:
        """However it makes sure of being the only one."""
        return self[:2] == other[:2]


class Standing(Enum):
    """Towards a pipeline."""

    OURS = "nobody else's"
    THEIRS = "another installation serves it"
    ABANDONED = "another one served it, and is gone"


def claimed_by(status: Mapping[str, Any]) -> Installation | None:
    """Who serves it, if somebody does; what can't be a name is nobody's."""
    found = status.get(FIELD)
    return Installation.of(str(found)) if found else None


class _Sight(NamedTuple):
    mark: object
    since: float


class Rivals:
    """What was seen of other installations, and since when. Times are any clock's that only goes forward."""

    def __init__(self, patience: float = Intervals.rival) -> None:
        self.patience = patience
        self._leases: dict[Installation, _Sight] = {}
        self._asked: dict[Installation, float] = {}
        self._edits: dict[Key, _Sight] = {}

    @property
    def pause(self) -> float:
        """Between two looks at a pipeline of somebody else's."""
        return self.patience / 4

    def is_due(self, rival: Installation, now: float) -> bool:
        """Whether its lease should be read again; it is at most once a pause, however many pipelines it has."""
        return rival.elects and now - self._asked.get(rival, float("-inf")) >= self.pause / 2

    def saw(self, rival: Installation, lease: Lease | None, now: float) -> None:
        """Its lease as it is; None where there is none."""
        spec = (lease or {}).get("spec", {})
        self._asked[rival] = now
        self._leases[rival] = _later(self._leases.get(rival), (spec.get("holderIdentity"), spec.get("renewTime")), now)

    def saw_nothing(self, rival: Installation, now: float) -> None:
        """The lease may not be read, or nobody answered: that says nothing of it."""
        self._asked[rival] = now
        self._leases.pop(rival, None)

    def is_gone(self, rival: Installation, key: Key, edit: tuple[int, int], now: float) -> bool:
        """For good; `edit` is the pipeline's generation and the one that its status speaks of."""
        generation, observed = edit
        if generation == observed:
            self._edits.pop(key, None)
        else:
            self._edits[key] = _later(self._edits.get(key), generation, now)
        sights = (self._leases.get(rival), self._edits.get(key))
        return any(sight is not None and now - sight.since >= self.patience for sight in sights)

    def forget(self, key: Key) -> None:
        """The pipeline is gone, or ours."""
        self._edits.pop(key, None)


def _later(before: _Sight | None, mark: object, now: float) -> _Sight:
    return before if before is not None and before.mark == mark else _Sight(mark, now)
