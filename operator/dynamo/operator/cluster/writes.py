"""The writes that a reconcile may ask for: apply, resize, delete, or none since the object is somebody else's."""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.operator.manifests.context import Manifest


@dataclass(frozen=True)
class Target:
    """A live object; the uid makes sure that it is still the object that was read."""

    api_version: str
    kind: str
    name: str
    uid: str
    version: str = ""
    """Its resourceVersion: whoever has written it since comes first. Empty where that isn't known."""


@dataclass(frozen=True)
class Apply:
    """Server-side apply; without uid the object must not exist yet."""

    manifest: Manifest
    uid: str | None = None
    because: tuple[str, ...] = ()
    """The fields that differ."""
    version: str = ""
    """As `Target.version`."""


@dataclass(frozen=True)
class Resize:
    """Set the replicas of an old revision's StatefulSet, and nothing else: what it was made from is gone."""

    target: Target
    replicas: int


@dataclass(frozen=True)
class Delete:
    """Remove an object of ours."""

    target: Target


@dataclass(frozen=True)
class Conflict:
    """A name that we need and somebody else has; nothing is written there."""

    kind: str
    name: str
    remedy: str = "rename the pipeline or delete that object"


Change = Apply | Resize | Delete | Conflict
