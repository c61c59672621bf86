"""Objects of every pipeline, as the watches delivered them: `ObjectStore`. Pure; `informer.py` feeds it.

Kept as text without what no decision reads, since a thousand pipelines have more than ten
thousand objects; of the largest pipelines only marks are kept once all texts together are too much. An
object's `resourceVersion` orders its events: an older one is ignored, so the answers to our own
writes can be taken in at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Final

import msgspec

from dynamo.operator.cluster.observe import MERELY_STARTING, is_ready, label
from dynamo.operator.kube.resources import Key, Resource
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.server import CONTAINER as SERVER
from dynamo.operator.manifests.workers import CONTAINER, LOADER

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Key
    version: int
    text: bytes
    """Empty: not kept, and asked for when it is needed."""
    mark: int
    """Of the text: another one is news."""


KEPT_BYTES: Final = 160 << 20
"""Of all texts. Beyond it nothing more is kept of a pipeline that has more than `SMALL_BYTES` of one kind."""
SMALL_BYTES: Final = 128 << 10


class ObjectStore:
    """Keeps objects by kind, namespace and name; those of a kind count once its watch is live."""

    def __init__(self) -> None:
        self._entries: dict[Resource, dict[tuple[str, str], _Entry]] = {}
        self._names: dict[tuple[Resource, Key], set[str]] = {}
        self._live: set[tuple[Resource, str | None]] = set()
        self._bytes: Counter[tuple[Resource, Key]] = Counter()
        self._unkept: Counter[tuple[Resource, Key]] = Counter()
        """How many objects of a pipeline and kind have no text."""
        self._total = 0

    def size(self) -> int:
        """Return the number of objects."""
        return sum(len(entries) for entries in self._entries.values())

    def live(self, resource: Resource, scope: str | None, alive: bool) -> None:
        """Note whether a watch (of one namespace, or of all) is live."""
        (self._live.add if alive else self._live.discard)((resource, scope))

    def of(self, resource: Resource, key: Key) -> list[dict[str, Any]] | None:
        """Return a pipeline's objects of one kind; None where only the server knows."""
        if not self._live & {(resource, None), (resource, key.namespace)}:
            return None
        if self._unkept[resource, key]:
            return None
        entries = self._entries.get(resource, {})
        names = sorted(self._names.get((resource, key), ()))
        return [msgspec.json.decode(entries[key.namespace, name].text) for name in names]

    def take(self, resource: Resource, body: Object) -> frozenset[Key]:
        """Store an object as it is now; return the pipelines for which that is news."""
        metadata = body["metadata"]
        place, version = (metadata["namespace"], metadata["name"]), _version(body)
        before = self._entries.get(resource, {}).get(place)
        if before is not None and before.version >= version:
            return frozenset()
        label = metadata.get("labels", {}).get(naming.PIPELINE)
        if not label:
            return self._remove(resource, place)
        text = _text(resource, body)
        entry = _Entry(Key(intern(place[0]), intern(label)), version, text, hash(text))
        self._put(resource, place, entry, before)
        if before is None:
            return frozenset({entry.key})
        return frozenset({before.key, entry.key}) if (before.key, before.mark) != (entry.key, entry.mark) else _NOBODY

    def drop(self, resource: Resource, body: Object) -> frozenset[Key]:
        """Drop an object that is gone, given as it was last; return the pipelines for which that is news."""
        place = body["metadata"]["namespace"], body["metadata"]["name"]
        before = self._entries.get(resource, {}).get(place)
        return self._remove(resource, place) if before is not None and before.version <= _version(body) else _NOBODY

    def forget(self, resource: Resource, namespace: str, name: str) -> None:
        """Forget an object that we have deleted; events report later what is left of it, if anything."""
        self._remove(resource, (namespace, name))

    def listed(
        self,
        resource: Resource,
        scope: str | None,
        names: Iterable[tuple[str, str]],
        version: str,
        of: Key | None = None,
    ) -> set[Key]:
        """Forget what a LIST (of one pipeline's objects, or of all) didn't have, unless it is newer than the LIST.

        The objects that it had must all have been stored.
        """
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
        elif before is not None:
            self._count(resource, before, -1)
        if self._total > KEPT_BYTES and self._bytes[resource, entry.key] > SMALL_BYTES:
            entry = replace(entry, text=b"")
        self._count(resource, entry, 1)
        self._entries.setdefault(resource, {})[place] = entry
        self._names.setdefault((resource, entry.key), set()).add(place[1])

    def _remove(self, resource: Resource, place: tuple[str, str]) -> frozenset[Key]:
        before = self._entries.get(resource, {}).pop(place, None)
        if before is None:
            return _NOBODY
        self._count(resource, before, -1)
        names = self._names[resource, before.key]
        names.discard(place[1])
        if not names:
            del self._names[resource, before.key]
        return frozenset({before.key})

    def _count(self, resource: Resource, entry: _Entry, sign: int) -> None:
        self._total += sign * len(entry.text)
        of = resource, entry.key
        for counter, by in ((self._bytes, len(entry.text)), (self._unkept, int(not entry.text))):
            counter[of] += sign * by
            if not counter[of]:
                del counter[of]


_NOBODY: frozenset[Key] = frozenset()
_METADATA = ("name", "namespace", "uid", "generation", "labels", "annotations", "ownerReferences", "deletionTimestamp")
_STATUS: Mapping[str, tuple[str, ...]] = {
    "Deployment": (
        "observedGeneration",
        "replicas",
        "readyReplicas",
        "updatedReplicas",
        "availableReplicas",
        "conditions",
    ),
    "Service": ("loadBalancer",),
    "Ingress": ("loadBalancer",),
    "Pod": (
        "phase",
        "reason",
        "message",
        "conditions",
        "initContainerStatuses",
        "containerStatuses",
        "resourceClaimStatuses",
    ),
}
"""What `observe`, `rollout_hold` and `frontend_url` read; the other kinds' statuses aren't read."""
_OF_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_CONTAINER = ("name", "ready", "started", "state", "lastState")


def trimmed(resource: Resource, body: Object) -> dict[str, Any]:
    """Return an object without what no decision reads, so that a change of that is no news either."""
    metadata = {name: body["metadata"][name] for name in _METADATA if name in body["metadata"]}
    kept: dict[str, Any] = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    if resource.kind == "Pod":
        metadata.pop("annotations", None)
        if spec := _pod_spec(body):
            kept["spec"] = spec
    else:
        kept |= {k: v for k, v in body.items() if k not in ("apiVersion", "kind", "metadata", "status")}
    status = dict(_status(resource, body.get("status") or {}))
    if "resourceClaims" not in kept.get("spec", {}):
        status.pop("resourceClaimStatuses", None)
    if resource.kind == "Pod" and _is_asked(body):
        status["podIP"] = body["status"].get("podIP", "")  # of one that isn't asked, its address is no news
    return {**kept, "status": status} if status else kept


def _pod_spec(body: Object) -> Object:
    """Return what is read of a pod's spec: where it hangs, which claims it waits for, how long its server may take."""
    spec, kept = body.get("spec") or {}, {}
    node = spec.get("nodeName")
    if node and "deletionTimestamp" in body["metadata"]:
        kept["nodeName"] = node
    if not node and (claims := spec.get("resourceClaims")):
        kept["resourceClaims"] = claims
    probes = [c.get("startupProbe") for c in spec.get("initContainers") or () if c.get("name") == SERVER]
    if probes:
        kept["initContainers"] = [{"name": SERVER, "startupProbe": probe} for probe in probes]
    return kept


def _is_asked(body: Object) -> bool:
    """Return whether its process is asked: of frontends those that are ready, of workers those that answer."""
    if label(body, naming.COMPONENT) == naming.FRONTEND:
        return is_ready(body)
    return any(c.get("name") == CONTAINER and c.get("started") for c in body["status"].get("containerStatuses") or ())


def _status(resource: Resource, status: Object) -> Iterator[tuple[str, Any]]:
    for name in _STATUS.get(resource.kind, ()):
        if name not in status:
            continue
        value = status[name]
        if name in _OF_CONTAINERS:
            value = [{k: c[k] for k in _CONTAINER if k in c} for c in value if _says_why(c)]
        elif name == "conditions":
            value = [{k: v for k, v in c.items() if not k.startswith("last")} for c in value if _counts(c)]
        elif name == "phase" and value != "Failed":
            continue
        if value not in ([], {}):
            yield name, value


def _counts(condition: Object) -> bool:
    """Return whether a condition matters: of a pod, that it serves or not; of a Deployment, what keeps it or that
    nothing goes on."""
    return (condition["type"], condition["status"]) in _COUNTING


_COUNTING = (("Ready", "True"), ("PodScheduled", "False"), ("ReplicaFailure", "True"), ("Progressing", "False"))


def _says_why(container: Object) -> bool:
    """Return whether a container's state tells why its pod doesn't serve.

    One that merely starts doesn't, and one that runs does only if it loads the model, is a server that is waited for,
    or a worker that answers.
    """
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting = (state.get("waiting") or {}).get("reason", MERELY_STARTING[0])
    if "running" in state and container.get("name") in (LOADER, SERVER):
        return True
    if container.get("name") == CONTAINER and container.get("started"):
        return True
    return "terminated" in state or "terminated" in last or waiting not in MERELY_STARTING


def _text(resource: Resource, body: Object) -> bytes:
    return msgspec.json.encode(trimmed(resource, body))


def _version(body: Object) -> int:
    return int(body["metadata"]["resourceVersion"])
