"""What the cluster has of every pipeline, as the watches told it: `Mirror`. Pure; `mirroring.py` feeds it.

Kept as text without what no decision reads, since a thousand pipelines have more than ten
thousand objects. An object's `resourceVersion` orders what is heard of it: an older one says
nothing, so the answers to our own writes can be taken in at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

import msgspec

from dynamo.operator.dirty import Key
from dynamo.operator.kinds import Resource
from dynamo.operator.observe import MERELY_STARTING, is_ready, label
from dynamo.operator.resources import naming
from dynamo.operator.resources.loading import CONTAINER as LOADER

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Key
    version: int
    text: bytes


class Mirror:
    """Objects by kind, namespace and name; those of a kind count once its watch is live."""

    def __init__(self) -> None:
        self._entries: dict[Resource, dict[tuple[str, str], _Entry]] = {}
        self._names: dict[tuple[Resource, Key], set[str]] = {}
        self._live: set[tuple[Resource, str | None]] = set()

    def size(self) -> int:
        """How many objects."""
        return sum(len(entries) for entries in self._entries.values())

    def live(self, resource: Resource, scope: str | None, alive: bool) -> None:
        """Whether a watch (of one namespace, or of all) now tells everything."""
        (self._live.add if alive else self._live.discard)((resource, scope))

    def of(self, resource: Resource, key: Key) -> list[dict[str, Any]] | None:
        """A pipeline's objects of one kind; None where only the server knows."""
        if not self._live & {(resource, None), (resource, key.namespace)}:
            return None
        entries = self._entries.get(resource, {})
        names = sorted(self._names.get((resource, key), ()))
        return [msgspec.json.decode(entries[key.namespace, name].text) for name in names]

    def take(self, resource: Resource, found: Object) -> frozenset[Key]:
        """An object as it is now; the pipelines for which that is news."""
        metadata = found["metadata"]
        place, version = (metadata["namespace"], metadata["name"]), _version(found)
        before = self._entries.get(resource, {}).get(place)
        if before is not None and before.version >= version:
            return frozenset()
        label = metadata.get("labels", {}).get(naming.PIPELINE)
        if not label:
            return self._remove(resource, place)
        entry = _Entry(Key(intern(place[0]), intern(label)), version, _text(resource, found))
        self._put(resource, place, entry, before)
        if before is None:
            return frozenset({entry.key})
        return frozenset({before.key, entry.key}) if (before.key, before.text) != (entry.key, entry.text) else _NOBODY

    def drop(self, resource: Resource, found: Object) -> frozenset[Key]:
        """An object that is gone, as it was last."""
        place = found["metadata"]["namespace"], found["metadata"]["name"]
        before = self._entries.get(resource, {}).get(place)
        return self._remove(resource, place) if before is not None and before.version <= _version(found) else _NOBODY

    def forget(self, resource: Resource, namespace: str, name: str) -> None:
        """We have deleted it; what is left of it, if anything, is heard of later."""
        self._remove(resource, (namespace, name))

    def listed(
        self,
        resource: Resource,
        scope: str | None,
        names: Iterable[tuple[str, str]],
        version: str,
        of: Key | None = None,
    ) -> set[Key]:
        """After a LIST (of one pipeline's, or of all) whose objects were all taken in: what it didn't have is gone,
        unless it is newer."""
        there, news = set(names), set[Key]()
        for place in self._places(resource, scope, of):
            if place not in there and self._entries[resource][place].version <= int(version):
                news |= self._remove(resource, place)
        return news

    def _places(self, resource: Resource, scope: str | None, of: Key | None) -> list[tuple[str, str]]:
        if of is not None:
            return [(of.namespace, name) for name in self._names.get((resource, of), ())]
        return [place for place in self._entries.get(resource, {}) if scope in (None, place[0])]

    def _put(self, resource: Resource, place: tuple[str, str], entry: _Entry, before: _Entry | None) -> None:
        if before is not None and before.key != entry.key:
            self._remove(resource, place)
        self._entries.setdefault(resource, {})[place] = entry
        self._names.setdefault((resource, entry.key), set()).add(place[1])

    def _remove(self, resource: Resource, place: tuple[str, str]) -> frozenset[Key]:
        before = self._entries.get(resource, {}).pop(place, None)
        if before is None:
            return _NOBODY
        names = self._names[resource, before.key]
        names.discard(place[1])
        if not names:
            del self._names[resource, before.key]
        return frozenset({before.key})


_NOBODY: frozenset[Key] = frozenset()
_METADATA = ("name", "namespace", "uid", "generation", "labels", "annotations", "ownerReferences", "deletionTimestamp")
_STATUS: Mapping[str, tuple[str, ...]] = {
    "Deployment": ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas", "conditions"),
    "Service": ("loadBalancer",),
    "Ingress": ("loadBalancer",),
    "Pod": ("phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses"),
}
"""What `observe` and `entrance.url` read; the other kinds' statuses tell nothing."""
_CONTAINER = ("name", "ready", "state", "lastState")


def trimmed(resource: Resource, found: Object) -> dict[str, Any]:
    """Without what no decision reads, so that a change of that is no news either."""
    metadata = {name: found["metadata"][name] for name in _METADATA if name in found["metadata"]}
    kept: dict[str, Any] = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource.kind == "Pod":
        metadata.pop("annotations", None)
    else:
        kept |= {k: v for k, v in found.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    status = dict(_status(resource, found.get("status") or {}))
    if resource.kind == "Pod" and label(found, naming.COMPONENT) == naming.FRONTEND and is_ready(found):
        status["podIP"] = found["status"].get("podIP", "")  # one that isn't ready isn't asked, and its address no news
    return {**kept, "status": status} if status else kept


def _status(resource: Resource, status: Object) -> Iterator[tuple[str, Any]]:
    for name in _STATUS.get(resource.kind, ()):
        if name not in status:
            continue
        value = status[name]
        if name.endswith("Statuses"):
            value = [{k: c[k] for k in _CONTAINER if k in c} for c in value if _says_why(c)]
        elif name == "conditions":
            value = [{k: v for k, v in c.items() if not k.startswith("last")} for c in value if _counts(c)]
        elif name == "phase" and value != "Failed":
            continue
        if value not in ([], {}):
            yield name, value


def _counts(condition: Object) -> bool:
    """A pod has a dozen changes of its conditions on its way, and serves or not; of a Deployment, what keeps it."""
    return (condition["type"], condition["status"]) in _COUNTING


_COUNTING = (("Ready", "True"), ("PodScheduled", "False"), ("ReplicaFailure", "True"))


def _says_why(container: Object) -> bool:
    """Whether its state tells why the pod doesn't serve: one that merely starts says nothing, and one that runs
    only if it loads the model."""
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = (state.get("waiting") or {}).get("reason", MERELY_STARTING[0])
    if "running" in state and container.get("name") == LOADER:
        return True
    return "terminated" in state or "terminated" in last or waiting not in MERELY_STARTING


def _text(resource: Resource, found: Object) -> bytes:
    return msgspec.json.encode(trimmed(resource, found))


def _version(found: Object) -> int:
    return int(found["metadata"]["resourceVersion"])
