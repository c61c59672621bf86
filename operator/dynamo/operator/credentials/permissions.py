"""What the parts of one Dynamo namespace may do on NATS and in etcd. Pure.

The subjects and keys are the runtime's (`dynamo.runtime.names`), which the operator doesn't
import; a test holds both together.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEPT: Final = {"_all"}
"""Stands for every namespace in the keys of clients, so nobody may be called so."""
_SHOWN: Final = 63
EPOCH: Final = "dynamo/epoch"
"""Whoever finds it absent makes it; a pipeline may only read it, so the operator does that first."""


class Keys(NamedTuple):
    """A range of etcd's keys: those that start with `prefix`."""

    prefix: str
    write: bool

    @property
    def end(self) -> str:
        """Return the first key behind the range, as etcd wants it."""
        return self.prefix[:-1] + chr(ord(self.prefix[-1]) + 1)


def subjects(dynamo_namespace: str) -> str:
    """Return what its parts publish and subscribe to, inboxes and replies included."""
    return f"dyn.{_checked(dynamo_namespace)}.>"


def keys(dynamo_namespace: str) -> tuple[Keys, ...]:
    """Return its instances and clients, and what every client reads: the epoch, and clients of all namespaces."""
    name = _checked(dynamo_namespace)
    return (
        Keys(f"dynamo/instances/{name}/", write=True),
        Keys(f"dynamo/clients/{name}/", write=True),
        Keys("dynamo/clients/_all/", write=False),
        Keys(EPOCH, write=False),
    )


def refused(kubernetes_namespace: str, dynamo_namespace: str, *, shared: bool = False) -> str | None:
    """Return why a pipeline may not be in this Dynamo namespace; None where it may.

    Kubernetes names hold no underscore, so the part before the first one says whose it is: otherwise a pipeline could
    name another tenant's, and answer the other's requests. It holds without sign-in too, where naming it would be all
    that it takes. `shared` is for a platform whose tenants trust each other.
    """
    prefix = f"{kubernetes_namespace}_"
    if _NAME.fullmatch(dynamo_namespace) and (
        dynamo_namespace.startswith(prefix) or (shared and dynamo_namespace not in _KEPT)
    ):
        return None
    return (
        f"must begin with {prefix!r}, because pipelines of different Kubernetes namespaces are isolated: "
        f"remove it, or write {prefix}{dynamo_namespace[:_SHOWN]}"
    )


def _checked(name: str) -> str:
    """Return the name if it is safe: a wildcard or a slash in it would widen the rights."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no Dynamo namespace")
    return name
