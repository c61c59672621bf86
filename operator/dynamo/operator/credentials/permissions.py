"""What the parts of one Dynamo namespace may do on NATS and in etcd. Pure.

The subjects and keys are the runtime's (`dynamo.runtime.names`), which the operator doesn't
import; a test holds both together.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
EPOCH: Final = "dynamo/epoch"
"""Whoever finds it absent makes it; a pipeline may only read it, so the operator does that first."""


class Keys(NamedTuple):
    """A range of etcd's keys: those that start with `prefix`."""

    prefix: str
    write: bool

    @property
    def end(self) -> str:
        """The first key behind the range, as etcd wants it."""
        return self.prefix[:-1] + chr(ord(self.prefix[-1]) + 1)


def subjects(dynamo_namespace: str) -> str:
    """What its parts publish and subscribe to; inboxes and replies are among it."""
    return f"dyn.{_checked(dynamo_namespace)}.>"


def keys(dynamo_namespace: str) -> tuple[Keys, ...]:
    """Its instances and clients, and what every client reads: the epoch, and clients that serve all namespaces."""
    name = _checked(dynamo_namespace)
    return (
        Keys(f"dynamo/instances/{name}/", write=True),
        Keys(f"dynamo/clients/{name}/", write=True),
        Keys("dynamo/clients/_all/", write=False),
        Keys(EPOCH, write=False),
    )


def refused(kubernetes_namespace: str, dynamo_namespace: str) -> str | None:
    """Why a pipeline may not have rights for this Dynamo namespace; None where it may.

    Kubernetes names hold no underscore, so the part before the first one says whose it is:
    otherwise a pipeline could name another tenant's and be let in.
    """
    prefix = f"{kubernetes_namespace}_"
    if dynamo_namespace.startswith(prefix) and _NAME.fullmatch(dynamo_namespace):
        return None
    return (
        f"must begin with {prefix!r}, since this platform gives pipelines rights for their own namespace only: "
        f"leave it out, or write {prefix}{dynamo_namespace}"
    )


def _checked(name: str) -> str:
    """A wildcard or a slash in a name would widen the rights."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no Dynamo namespace")
    return name
