"""What a client knows of the instances: a state machine without I/O and clock.

`registry.InstanceView` feeds it lists, changes and verdicts and carries out the effects
that it returns. The rules are those of the protocol's "Keys in etcd":

- a record that turns `draining` leaves routing at once;
- a record that just vanishes is *unconfirmed*: it is pinged, and stays in routing until
  nobody answers (or it has not registered again after a minute);
- a store of another epoch, or of a smaller revision, was replaced: forget nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from dynamo.runtime.discovery.store import Change, Entry
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey, instance_key, parse_instance_key
from dynamo.runtime.transport.bus import Verdict

KEEP_UNCONFIRMED: Final = 60.0
"""Seconds that an instance without a record stays in routing while it answers pings."""
SILENCE_IS_DEATH: Final = 5.0
"""Seconds of unanswered pings after which an unconfirmed instance is gone."""
PING_AGAIN: Final = 1.0
PING_ALIVE_AGAIN: Final = 2.0
FRONTEND: Final = "frontend"
"""The kind of client whose acknowledgement makes a worker ready."""


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint served by one process: its record in the store."""

    namespace: str
    component: str
    endpoint: str
    id: int
    nonce: str
    transport: str = "nats"
    host: str = ""
    """Where its process runs, as that calls itself: in Kubernetes, its pod."""
    draining: bool = False
    figures: dict[str, Any] = {}
    card: dict[str, Any] | None = None

    @property
    def path(self) -> EndpointPath:
        return EndpointPath(self.namespace, self.component, self.endpoint)

    @property
    def key(self) -> InstanceKey:
        return InstanceKey(self.path, self.id)

    @property
    def instance_id(self) -> int:
        return self.id


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a client publishes of itself: what it has applied of the instances."""

    kind: str
    epoch: str
    revision: int
    pending: list[int] = []
    failed: dict[int, str] = {}
    leaving: bool = False
    """It goes on purpose: nobody waits for it to come back."""


class Joined(NamedTuple):
    """Now in routing."""

    instance: Instance


class Changed(NamedTuple):
    """Effect: the instance is in routing before and after, with other contents."""

    instance: Instance


class Left(NamedTuple):
    """No longer in routing."""

    key: InstanceKey


class Replaced(NamedTuple):
    """Another store answers where ours was: every record of this process must be written again."""


class Malformed(NamedTuple):
    """A record that this version can't read."""

    key: str
    reason: str


Effect: TypeAlias = Joined | Changed | Left | Replaced | Malformed


def encode_instance(instance: Instance) -> bytes:
    return msgspec.json.encode(instance)


def decode_instance(entry_key: str, value: bytes) -> Instance:
    """Read the record under a key; `InvalidArgument` where the two don't belong together."""
    key = parse_instance_key(entry_key)
    try:
        instance = msgspec.json.decode(value, type=Instance)
    except msgspec.DecodeError as error:
        raise InvalidArgument(str(error)) from error
    if instance.key != key:
        raise InvalidArgument(f"it describes {instance.path} {instance.id}")
    return instance


@dataclasses.dataclass(slots=True)
class _Known:
    """`vanished`: when its record went away without goodbye; None while there is one."""

    instance: Instance
    vanished: float | None = None
    suspended: bool = False
    silent_since: float | None = None


class Membership:
    """The instances as one client sees them."""

    def __init__(self) -> None:
        self.epoch = ""
        self.revision = 0
        self.version = 0
        """Grows whenever the answer of `routable` may have changed."""
        self.pending: set[InstanceKey] = set()
        self.failed: dict[InstanceKey, str] = {}
        self.leaving = False
        self._known: dict[InstanceKey, _Known] = {}
        self._pings: dict[InstanceKey, float] = {}

    @property
    def instances(self) -> Mapping[InstanceKey, Instance]:
        """Return the instances that are neither draining nor gone.

        `unconfirmed` and `suspended` ones are among them.
        """
        return {key: known.instance for key, known in self._known.items() if not known.instance.draining}

    @property
    def size(self) -> int:
        """Return how many it knows, those that drain or are unconfirmed among them."""
        return len(self._known)

    def serves(self, key: InstanceKey) -> bool:
        """Tell whether it is one of `instances`."""
        known = self._known.get(key)
        return known is not None and not known.instance.draining

    def routable(self, path: EndpointPath) -> list[InstanceKey]:
        """Return the instances of one endpoint that may be picked, in order of their ids."""
        due = [
            key
            for key, known in self._known.items()
            if key.path == path and not known.instance.draining and not known.suspended
        ]
        return sorted(due)

    def snapshot(self, epoch: str, revision: int, entries: Iterable[Entry], now: float) -> list[Effect]:
        """Apply a list of all records at one revision."""
        effects: list[Effect] = []
        if self.epoch and (epoch != self.epoch or revision < self.revision):
            effects.append(Replaced())
        self.epoch, self.revision = epoch, revision
        listed = set()
        for entry in entries:
            effects += self._wrote(entry.key, entry.value)
            listed.add(entry.key)
        for key, known in list(self._known.items()):
            if known.vanished is None and instance_key(key) not in listed:
                effects += self._vanished(key, now)
        return self._noted(effects)

    def change(self, changes: Iterable[Change], now: float) -> list[Effect]:
        """Apply changes in order."""
        effects: list[Effect] = []
        for change in changes:
            if change.value is not None:
                effects += self._wrote(change.key, change.value)
            else:
                effects += self._removed(change.key, now)
            self.revision = max(self.revision, change.revision)
        return self._noted(effects)

    def verdict(self, key: InstanceKey, verdict: Verdict | None, now: float) -> list[Effect]:
        """Take what a ping or traffic said; None: the question could not be asked."""
        known = self._known.get(key)
        if known is None:
            return []
        suspended = known.suspended if verdict is None else verdict is not Verdict.ALIVE
        if suspended != known.suspended:
            known.suspended = suspended
            self.version += 1
        if verdict is Verdict.SILENT:
            known.silent_since = now if known.silent_since is None else known.silent_since
        elif verdict is Verdict.ALIVE:
            known.silent_since = None
        if known.vanished is not None:
            return self._judge_vanished(key, known, verdict, now)
        if suspended:
            self._pings[key] = now + PING_AGAIN
        else:
            self._pings.pop(key, None)
        return []

    def due_pings(self, now: float) -> list[InstanceKey]:
        """Return the instances to ask now; each is asked again later unless an answer settles it."""
        due = [key for key, at in self._pings.items() if at <= now]
        for key in due:
            self._pings[key] = now + PING_AGAIN
        return due

    def next_ping(self) -> float | None:
        """Return when `due_pings` has something to do next."""
        return min(self._pings.values(), default=None)

    def acknowledgement(self, kind: str) -> ClientRecord:
        """Return what this client has applied, for its own key in the store."""
        pending = sorted({key.id for key in self.pending if key in self._known})
        failed = {key.id: reason for key, reason in sorted(self.failed.items()) if key in self._known}
        return ClientRecord(
            kind=kind, epoch=self.epoch, revision=self.revision, pending=pending, failed=failed, leaving=self.leaving
        )

    def _wrote(self, entry_key: str, value: bytes) -> list[Effect]:
        try:
            instance = decode_instance(entry_key, value)
        except InvalidArgument as error:
            return [Malformed(entry_key, error.message)]
        before = self._known.get(instance.key)
        if before is not None and before.instance.nonce != instance.nonce:
            return [*self._drop(instance.key), *self._wrote(entry_key, value)]
        if before is None:
            self._known[instance.key] = _Known(instance)
            return [] if instance.draining else [Joined(instance)]
        old, before.instance = before.instance, instance
        if before.vanished is not None:
            before.vanished, before.silent_since, before.suspended = None, None, False
            self._pings.pop(instance.key, None)
            self.version += 1
        return _difference(old, instance)

    def _removed(self, entry_key: str, now: float) -> list[Effect]:
        try:
            key = parse_instance_key(entry_key)
        except InvalidArgument as error:
            return [Malformed(entry_key, error.message)]
        return self._vanished(key, now) if key in self._known else []

    def _vanished(self, key: InstanceKey, now: float) -> list[Effect]:
        known = self._known[key]
        if known.instance.draining:
            return self._drop(key)
        if known.vanished is None:
            known.vanished = self._pings[key] = now
        return []

    def _judge_vanished(self, key: InstanceKey, known: _Known, verdict: Verdict | None, now: float) -> list[Effect]:
        assert known.vanished is not None
        silent = known.silent_since is not None and now - known.silent_since >= SILENCE_IS_DEATH
        if verdict is Verdict.DEAD or silent or now - known.vanished >= KEEP_UNCONFIRMED:
            return self._drop(key)
        self._pings[key] = now + (PING_ALIVE_AGAIN if verdict is Verdict.ALIVE else PING_AGAIN)
        return []

    def _noted(self, effects: list[Effect]) -> list[Effect]:
        self.version += any(isinstance(effect, Joined | Left) for effect in effects)
        return effects

    def _drop(self, key: InstanceKey) -> list[Effect]:
        known = self._known.pop(key)
        self._pings.pop(key, None)
        self.pending.discard(key)
        self.failed.pop(key, None)
        self.version += 1
        return [] if known.instance.draining else [Left(key)]


def _difference(old: Instance, new: Instance) -> list[Effect]:
    """Return what a listener is told when `new` takes the place of `old`."""
    if new.draining:
        return [] if old.draining else [Left(new.key)]
    if old.draining:
        return [Joined(new)]
    return [Changed(new)] if new != old else []
