"""Questions to an API server for `dynamo doctor`: bounded in time and size, and what may not be seen is noted."""

from __future__ import annotations

import time
from typing import Final

from dynamo.cli.cluster.client import Cluster, Live
from dynamo.cli.cluster.errors import RefusedError
from dynamo.operator.kube.resources import Resource

READ_SECONDS: Final = 5.0
WITHIN_SECONDS: Final = 30.0
MOST: Final = 500
"""Objects of one kind that are read."""
_SUFFIXES: Final = {
    "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def amount(text: str) -> float:
    """Return `1500m`, `2Gi` or `3` as a number; 0 for what is none."""
    digits = text.rstrip("mkMGTPEi")
    try:
        return float(digits) * _SUFFIXES.get(text[len(digits) :], 1.0)
    except ValueError:
        return 0.0


class Look:
    """Questions to one API server, until the time is up."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._until = time.monotonic() + WITHIN_SECONDS
        self.unseen: list[str] = []

    def get(self, path: str, what: str, **query: str) -> Live | None:
        """Return what lies at a path; None where it isn't there, may not be seen, or the time is up."""
        if time.monotonic() > self._until:
            self.unseen.append(f"{what}: no time was left")
            return None
        try:
            return self._cluster.request("GET", path, query, read_seconds=READ_SECONDS)
        except RefusedError as refused:
            if refused.status not in (403, 404):
                raise
            if refused.status == 403:
                self.unseen.append(f"{what}: you may not read them")
            return None

    def items(self, resource: Resource, namespace: str | None, **query: str) -> list[Live] | None:
        """Return the first of a kind; None where they may not be seen."""
        answer = self.get(resource.path(namespace), resource.plural, limit=str(MOST), **query)
        return None if answer is None else list(answer.get("items") or [])
