"""Every pipeline as its watch told it last: `Latest`, so that a look needn't ask for it. Pure; safe in several threads.

kopf's thread tells it, looks read it, and the answers to their status writes are taken in
before their events come. It lives as long as kopf's watch: what isn't known is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from dynamo.operator.dirty import Key

Object = dict[str, Any]


class _Told(NamedTuple):
    uid: str
    version: int
    text: bytes


class Latest:
    """Bodies without managed fields, as text: a thousand of them are a few megabytes."""

    def __init__(self) -> None:
        self._told: dict[Key, _Told] = {}
        self._lock = Lock()

    def of(self, key: Key) -> Object | None:
        """The pipeline; None where only the server knows."""
        found = self._told.get(key)
        return None if found is None else msgspec.json.decode(found.text)

    def told(self, body: Mapping[str, Any]) -> None:
        """By the watch, which tells in order; but the answer to a write of ours may have come before."""
        key, one = _read(body)
        with self._lock:
            before = self._told.get(key)
            if before is None or before.uid != one.uid or before.version <= one.version:
                self._told[key] = one

    def wrote(self, body: Mapping[str, Any]) -> None:
        """The server's answer to a write of ours; says nothing of a pipeline that isn't known, or any more."""
        key, one = _read(body)
        with self._lock:
            before = self._told.get(key)
            if before is not None and before.uid == one.uid and before.version < one.version:
                self._told[key] = one

    def gone(self, key: Key) -> None:
        """Deleted, or not to be believed."""
        with self._lock:
            self._told.pop(key, None)

    def listed(self, found: Mapping[Key, int]) -> None:
        """After a LIST, by resourceVersion: forgets what is older than that, or isn't there any more."""
        with self._lock:
            self._told = {k: one for k, one in self._told.items() if one.version >= found.get(k, one.version + 1)}

    def clear(self) -> None:
        """The watch has ended: nobody tells any more."""
        with self._lock:
            self._told.clear()


def _read(body: Mapping[str, Any]) -> tuple[Key, _Told]:
    metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    text = msgspec.json.encode({**body, "metadata": metadata})
    version = int(metadata["resourceVersion"])
    return Key(metadata["namespace"], metadata["name"]), _Told(metadata["uid"], version, text)
