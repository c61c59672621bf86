"""Pipelines as their watch reported them last: `PipelineCache` spares a reconcile a GET. Pure; safe in several threads.

kopf's thread fills it, reconciles read it, and the answers to their status writes are taken in
before their events come. It lives as long as kopf's watch: what isn't known is asked for. Of a spec
that is too large or too deep only that is kept; and the more is kept, the smaller must be what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.operator.api.body import REFUSED, too_much
from dynamo.operator.kube.resources import Key

Object = dict[str, Any]


KEPT_BYTES: Final = 64 << 20
"""Of all bodies together. Beyond it those of more than `SMALL_BYTES` are asked for when they are needed."""
SMALL_BYTES: Final = 16 << 10


class _CachedBody(NamedTuple):
    uid: str
    version: int
    text: bytes
    """Empty: not kept."""


class PipelineCache:
    """Keeps bodies without managed fields, as text: a thousand of them are a few megabytes."""

    def __init__(self) -> None:
        self._bodies: dict[Key, _CachedBody] = {}
        self._bytes = 0
        self._lock = Lock()

    def of(self, key: Key) -> Object | None:
        """Return the pipeline; None where only the server knows."""
        cached = self._bodies.get(key)
        return msgspec.json.decode(cached.text) if cached is not None and cached.text else None

    def put(self, body: Mapping[str, Any]) -> None:
        """Keep a body from the watch, unless the answer to a write of ours was newer."""
        key, cached = _read(body)
        with self._lock:
            before = self._bodies.get(key)
            if before is None or before.uid != cached.uid or before.version <= cached.version:
                self._keep(key, cached)

    def wrote(self, body: Mapping[str, Any]) -> None:
        """Keep the server's answer to a write of ours, if the pipeline is cached."""
        key, cached = _read(body)
        with self._lock:
            before = self._bodies.get(key)
            if before is not None and before.uid == cached.uid and before.version < cached.version:
                self._keep(key, cached)

    def gone(self, key: Key) -> None:
        """Forget a pipeline that was deleted, or whose cached body is doubtful."""
        with self._lock:
            self._drop(key)

    def listed(self, versions: Mapping[Key, int]) -> None:
        """Forget bodies that a LIST, by resourceVersion, showed to be older or gone."""
        with self._lock:
            for key in [k for k, body in self._bodies.items() if body.version < versions.get(k, body.version + 1)]:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything: the watch has ended."""
        with self._lock:
            self._bodies.clear()
            self._bytes = 0

    def _keep(self, key: Key, body: _CachedBody) -> None:
        self._drop(key)
        if len(body.text) > SMALL_BYTES and self._bytes + len(body.text) > KEPT_BYTES:
            body = body._replace(text=b"")
        self._bodies[key] = body
        self._bytes += len(body.text)

    def _drop(self, key: Key) -> None:
        before = self._bodies.pop(key, None)
        if before is not None:
            self._bytes -= len(before.text)


def _read(body: Mapping[str, Any]) -> tuple[Key, _CachedBody]:
    metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    kept = {**body, "metadata": metadata}
    if refusal := too_much(body):
        kept = {k: v for k, v in kept.items() if k != "spec"} | {REFUSED: refusal}
    text = msgspec.json.encode(kept)
    version = int(metadata["resourceVersion"])
    return Key(metadata["namespace"], metadata["name"]), _CachedBody(metadata["uid"], version, text)
