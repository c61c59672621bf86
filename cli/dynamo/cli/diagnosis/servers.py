"""What can be wrong with an etcd or a NATS of a user's own. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis.findings import Finding

LEAST_PAYLOAD: Final = 1 << 20
"""NATS' own default; requests are cut into messages of less."""


@dataclass(frozen=True)
class ServerFact:
    """What a question to one server came to."""

    kind: str
    """`etcd` or `NATS`."""
    url: str
    error: str = ""
    """Why it gave no answer."""
    other: str = ""
    """What answered in its place."""
    refused: str = ""
    """What it said to the credentials."""
    sick: str = ""
    """What it says of itself."""
    max_payload: int | None = None


_VARIABLES: Final = {"etcd": ("ETCD_ENDPOINTS", "ETCD_AUTH_USERNAME"), "NATS": ("NATS_SERVER", "NATS_AUTH_USERNAME")}


def findings(servers: Iterable[ServerFact]) -> Iterator[Finding]:
    """Yield what is wrong with each."""
    for server in servers:
        variable, user = _VARIABLES[server.kind]
        if server.error:
            yield Finding(
                "server-away", f"{server.kind} doesn't answer at {server.url}", server.error,
                f"start it, or correct {variable}; unset {variable}, and dynamo up starts one of its own",
            )  # fmt: skip
        elif server.other:
            yield Finding(
                "wrong-server", f"what answers at {server.url} is no {server.kind}", server.other,
                f"export {variable}=URL of the right one (etcd listens on 2379, NATS on 4222)",
            )  # fmt: skip
        elif server.refused:
            yield Finding(
                "server-refuses", f"{server.kind} at {server.url} refuses the credentials", server.refused,
                f"export {user}=… and {user.replace('USERNAME', 'PASSWORD')}=… of a user that it knows",
            )  # fmt: skip
        elif server.sick:
            yield Finding(
                "server-sick", f"{server.kind} at {server.url} isn't healthy", server.sick,
                "etcdctl endpoint status --cluster -w table; etcdctl alarm list",
            )  # fmt: skip
        elif server.max_payload is not None and server.max_payload < LEAST_PAYLOAD:
            yield Finding(
                "small-payload", f"NATS at {server.url} takes small messages only",
                f"max_payload is {server.max_payload} bytes, and requests of up to {LEAST_PAYLOAD} are sent",
                "set max_payload: 8MB in its configuration, then nats-server --signal reload",
            )  # fmt: skip
