"""Whom a namespace's own NATS trusts: `trust_of(live, config)`. Pure; chance and time are arguments.

It has keys of its own, so that a user of one namespace is nobody to the server of another. They lie in the namespace,
where whoever may read Secrets could make users of that one server. Made once: what the live Secret holds is kept as
long as users can be made with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dynamo.operator.credentials import nats_keys, peer_certificates
from dynamo.operator.credentials.nats_keys import Draw, KeysError, NatsIssuer
from dynamo.operator.credentials.secret import Data, Material
from dynamo.operator.manifests.nats import CONFIG, ROUTES_PORT

_KEYS: Final = (
    nats_keys.SERVER_CONF,
    nats_keys.ACCOUNT,
    nats_keys.SIGNING,
    nats_keys.OPERATOR_SEED,
    nats_keys.ACCOUNT_SEED,
)


ROUTES_CONF: Final = "routes.conf"
"""Where servers find each other, and the password by which they know each other: whoever has it may send anything."""
_PASSWORD: Final = re.compile(rb'password: "([0-9a-f]{64})"')
_ROUTES_BYTES: Final = 1024


@dataclass(frozen=True)
class Trust:
    """Contents of such a server's Secret, and what its users are made with."""

    issuer: NatsIssuer
    data: Mapping[str, bytes] = field(repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What pipelines get besides, by file."""

    def given_to(self, material: Material) -> Material:
        """Return the platform's material, with this server in the place of the platform's NATS."""
        return replace(material, nats_issuer=self.issuer, nats_files=dict(self.files))


def trust_of(
    live: Mapping[str, bytes],
    config: str,
    draw: Draw,
    now: int,
    files: Mapping[str, bytes] | None = None,
    routes: str = "",
) -> Trust:
    """Return the keys of `live` if they are whole, else new ones; the configuration is always the given one.

    `routes`: the host name of all servers together, where there are several.
    """
    kept: Data = {key: live[key] for key in _KEYS if key in live}
    issuer = _issuer(kept)
    if issuer is None:
        kept = nats_keys.new_platform(draw, now)
        issuer = NatsIssuer.of(kept)
    if routes:
        kept |= _peers(live, routes, now)
        kept[ROUTES_CONF] = _routes(routes, _password(live) or draw().hex())
    return Trust(issuer, {**kept, CONFIG: config.encode()}, files or {})


def _peers(live: Mapping[str, bytes], host: str, now: int) -> Data:
    """Return the certificate of `live` if it is whole, else a new one."""
    if peer_certificates.is_for(live, [host]):
        return {name: live[name] for name in (peer_certificates.CERTIFICATE, peer_certificates.KEY)}
    return peer_certificates.new_certificate([host], now)


def _password(live: Mapping[str, bytes]) -> str:
    """Return the password of routes that a Secret has; empty where there is none that we made."""
    given = _PASSWORD.search(live.get(ROUTES_CONF, b"")[:_ROUTES_BYTES])
    return given[1].decode() if given else ""


def _routes(host: str, password: str) -> bytes:
    """Return what a server's `cluster` block includes."""
    return (
        f'authorization {{ user: "routes", password: "{password}" }}\n'
        f'routes: ["nats-route://routes:{password}@{host}:{ROUTES_PORT}"]\n'
    ).encode()


def _issuer(data: Mapping[str, bytes]) -> NatsIssuer | None:
    """Return the issuer; None where no user could be made, or the server would not know the account."""
    try:
        issuer = NatsIssuer.of(data)
    except (KeysError, KeyError):
        return None
    return issuer if issuer.account.encode() in data.get(nats_keys.SERVER_CONF, b"") else None
