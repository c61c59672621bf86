"""Whom a namespace's own NATS trusts: `trust_of(live, config)`. Pure; chance and time are arguments.

It has keys of its own, so that a user of one namespace is nobody to the server of another. They lie in the namespace,
where whoever may read Secrets could make users of that one server. Made once: what the live Secret holds is kept as
long as users can be made with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials.nats_keys import Draw, KeysError, NatsIssuer
from dynamo.operator.credentials.secret import Data, Material
from dynamo.operator.manifests.nats import CONFIG

_KEYS: Final = (
    nats_keys.SERVER_CONF,
    nats_keys.ACCOUNT,
    nats_keys.SIGNING,
    nats_keys.OPERATOR_SEED,
    nats_keys.ACCOUNT_SEED,
)


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
    live: Mapping[str, bytes], config: str, draw: Draw, now: int, files: Mapping[str, bytes] | None = None
) -> Trust:
    """Return the keys of `live` if they are whole, else new ones; the configuration is always the given one."""
    kept: Data = {key: live[key] for key in _KEYS if key in live}
    issuer = _issuer(kept)
    if issuer is None:
        kept = nats_keys.new_platform(draw, now)
        issuer = NatsIssuer.of(kept)
    return Trust(issuer, {**kept, CONFIG: config.encode()}, files or {})


def _issuer(data: Mapping[str, bytes]) -> NatsIssuer | None:
    """Return the issuer; None where no user could be made, or the server would not know the account."""
    try:
        issuer = NatsIssuer.of(data)
    except (KeysError, KeyError):
        return None
    return issuer if issuer.account.encode() in data.get(nats_keys.SERVER_CONF, b"") else None
