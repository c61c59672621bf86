"""Names, subjects and keys: the only place that spells them.

An endpoint is `namespace.component.endpoint`; an instance is an endpoint plus the
53-bit id of the process that serves it. Names become NATS subjects and etcd keys,
so they are checked here, at the edge.
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

from dynamo.runtime.errors import InvalidArgument

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_ROOT: Final = "dynamo"
EPOCH_KEY: Final = f"{_ROOT}/epoch"
INSTANCES: Final = f"{_ROOT}/instances/"
CLIENTS: Final = f"{_ROOT}/clients/"
ALL_NAMESPACES: Final = "_all"


def new_id() -> int:
    """Make a random id of 53 bits (exact in JSON numbers), never 0."""
    return secrets.randbits(53) or 1


def check_name(name: str, what: str = "name") -> str:
    """Return `name`, or raise `InvalidArgument` where it can't be part of a subject or key."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{what} {name!r} may hold only letters, digits, '_' and '-'")
    return name


class EndpointPath(NamedTuple):
    """`namespace.component.endpoint`."""

    namespace: str
    component: str
    endpoint: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.component}.{self.endpoint}"

    @classmethod
    def parse(cls, text: str) -> EndpointPath:
        """Read `ns.comp.ep` or `dyn://ns.comp.ep`; exactly three parts, else `InvalidArgument`."""
        parts = text.removeprefix("dyn://").split(".")
        if len(parts) != 3:
            raise InvalidArgument(f"endpoint {text!r} must be namespace.component.endpoint")
        checked = (check_name(p, w) for p, w in zip(parts, cls._fields, strict=True))
        return cls(*checked)


class InstanceKey(NamedTuple):
    """One endpoint served by one process."""

    path: EndpointPath
    id: int


def hex_id(value: int) -> str:
    """Write an id as it stands in subjects and keys: 14 hexadecimal digits."""
    return f"{value:014x}"


def request_subject(key: InstanceKey) -> str:
    ns, component, endpoint = key.path
    return f"dyn.{ns}.ep.{component}.{endpoint}.{hex_id(key.id)}.req"


def control_subject(key: InstanceKey) -> str:
    ns, component, endpoint = key.path
    return f"dyn.{ns}.ep.{component}.{endpoint}.{hex_id(key.id)}.ctl"


def gone_subject(key: InstanceKey, client: int | str) -> str:
    """Return the subject where the bus tells an instance that a client no longer listens; `client` may be `*`."""
    ns, component, endpoint = key.path
    who = client if isinstance(client, str) else hex_id(client)
    return f"dyn.{ns}.ep.{component}.{endpoint}.{hex_id(key.id)}.gone.{who}"


def kv_subject(namespace: str, component: str, instance: int | str) -> str:
    """Return the subject where an instance says what its KV cache gains and loses.

    `instance` may be `*`: all of them.
    """
    who = instance if isinstance(instance, str) else hex_id(instance)
    return f"dyn.{namespace}.kv.{component}.{who}"


def router_subject(namespace: str, client: int | str) -> str:
    """Return the subject where a frontend says what it has sent to whom.

    `client` may be `*` to listen to all of them.
    """
    who = client if isinstance(client, str) else hex_id(client)
    return f"dyn.{namespace}.router.{who}"


def frame_subject(namespace: str, client: int) -> str:
    return f"dyn.{namespace}.in.{hex_id(client)}.s"


def reply_subject(namespace: str, client: int, stream: int | str) -> str:
    """Return the subject where answers to one request go; `stream` may be `*` to listen to all of them."""
    return f"dyn.{namespace}.in.{hex_id(client)}.r.{stream}"


def instance_prefix(namespace: str | None) -> str:
    return INSTANCES if namespace is None else f"{INSTANCES}{namespace}/"


def instance_key(key: InstanceKey) -> str:
    ns, component, endpoint = key.path
    return f"{INSTANCES}{ns}/{component}/{endpoint}/{hex_id(key.id)}"


def parse_instance_key(key: str) -> InstanceKey:
    """Read what `instance_key` wrote; `InvalidArgument` for anything else."""
    parts = key.removeprefix(INSTANCES).split("/")
    if not key.startswith(INSTANCES) or len(parts) != 4:
        raise InvalidArgument(f"{key!r} is no instance key")
    try:
        return InstanceKey(EndpointPath(*parts[:3]), int(parts[3], 16))
    except ValueError as error:
        raise InvalidArgument(f"{key!r} is no instance key") from error


def client_prefix(namespace: str | None) -> str:
    return f"{CLIENTS}{namespace or ALL_NAMESPACES}/"


def client_key(namespace: str | None, client: int) -> str:
    return f"{client_prefix(namespace)}{hex_id(client)}"
