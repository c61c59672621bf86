"""When a worker is Ready: every live frontend can route to it. Pure; the clock is an argument.

`registry.Registration` feeds it the clients' keys and asks `judge`. A frontend counts
once it has applied the worker's record and neither loads nor failed to load it; one that
lags more than ten seconds no longer counts, and is reported; one whose key went away is
remembered for as long, since a process that is stopped, or computes for seconds, loses its
lease, too, and comes back. Who leaves on purpose says so. The protocol's "Ready means routable".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from dynamo.runtime.discovery.membership import FRONTEND, ClientRecord
from dynamo.runtime.discovery.store import Change, Entry

LAG_LIMIT: Final = 10.0


class Readiness(NamedTuple):
    """`reasons` says what is missing, `lagging` which frontends were left out of the count."""

    ready: bool
    reasons: list[str]
    lagging: Sequence[str] = ()


class Written(NamedTuple):
    """Place of a registration in the store's history."""

    epoch: str
    revision: int
    at: float
    """When, on the clock that `judge` is asked with."""


@dataclasses.dataclass(slots=True)
class _Seen:
    record: ClientRecord
    since: float
    gone: float | None = None


class Clients:
    """The clients of one namespace, and those of all namespaces, as a worker sees them."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def snapshot(self, prefix: str, entries: Iterable[Entry], now: float) -> None:
        """Apply a list."""
        listed = set()
        for entry in entries:
            self._wrote(entry.key, entry.value, now)
            listed.add(entry.key)
        for key in self._seen:
            if key.startswith(prefix) and key not in listed:
                self._went(key, now)
        self._forget(now)

    def change(self, changes: Iterable[Change], now: float) -> None:
        for change in changes:
            if change.value is None:
                self._went(change.key, now)
            else:
                self._wrote(change.key, change.value, now)
        self._forget(now)

    def judge(self, instance: int, written: Written, now: float) -> Readiness:
        """Say whether every live frontend can route to the instance."""
        reasons: list[str] = []
        lagging: list[str] = []
        for key, seen in sorted(self._seen.items()):
            if seen.record.kind != FRONTEND or (seen.gone is not None and now - seen.gone > LAG_LIMIT):
                continue
            name, record = f"frontend {key.rpartition('/')[2]}", seen.record
            if record.epoch != written.epoch or record.revision < written.revision:
                late = now - max(seen.since, written.at) > LAG_LIMIT
                (lagging if late else reasons).append(f"{name} has not seen this instance yet")
            elif instance in record.failed:
                reasons.append(f"{name} can't use this instance: {record.failed[instance]}")
            elif instance in record.pending:
                reasons.append(f"{name} is still loading what this instance needs")
        return Readiness(not reasons, reasons, lagging)

    def cover(self, epoch: str, revision: int) -> bool:
        """Have all clients, of whatever kind, applied what was written at `revision`?"""
        records = [seen.record for seen in self._seen.values() if seen.gone is None]
        return all(record.epoch == epoch and record.revision >= revision for record in records)

    def _went(self, key: str, now: float) -> None:
        seen = self._seen.get(key)
        if seen is not None and seen.gone is None:
            seen.gone = now

    def _forget(self, now: float) -> None:
        for key in [k for k, seen in self._seen.items() if seen.gone is not None and now - seen.gone > LAG_LIMIT]:
            del self._seen[key]

    def _wrote(self, key: str, value: bytes, now: float) -> None:
        try:
            record = msgspec.json.decode(value, type=ClientRecord)
        except msgspec.DecodeError:
            # A client of another version: it can't hold up every worker for ever.
            self._seen.pop(key, None)
            return
        seen = self._seen.get(key)
        if record.leaving:
            self._seen.pop(key, None)
        elif seen is None:
            self._seen[key] = _Seen(record, now)
        else:
            seen.record, seen.gone = record, None
