"""NATS' decentralised sign-in: keys, the server's configuration, users limited to some subjects. Pure.

The server trusts an operator key, which vouches for one account; the account's signing key
vouches for users. So users are made without a call to the server. Randomness and time come
in as arguments; `Draw` gives 32 random bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import nkeys  # type: ignore[import-untyped]

SERVER_CONF: Final = "server.conf"
"""What the server includes; it holds nothing secret."""
ACCOUNT: Final = "account"
"""The account's public key."""
SIGNING: Final = "signing.nk"
"""The seed of the account's signing key: with it, users are made."""
OPERATOR_SEED: Final = "operator.nk"
ACCOUNT_SEED: Final = "account.nk"
"""With these two the keys above are replaced without cutting anybody off."""

Draw = Callable[[], bytes]


class KeysError(Exception):
    """Keys that can't be used; the message says which, and never what they hold."""


@dataclass(frozen=True)
class NatsIssuer:
    """The account's signing key, which vouches for users."""

    account: str
    public: str
    seed: bytes

    def __repr__(self) -> str:
        return f"NatsIssuer({self.account})"

    @classmethod
    def of(cls, data: Mapping[str, bytes]) -> NatsIssuer:
        """Return the issuer in a Secret's data; raises `KeysError`."""
        account, seed = data[ACCOUNT].decode("ascii", "replace").strip(), data[SIGNING].strip()
        try:
            public = _pair(seed).public_key.decode()
        except Exception as error:  # nkeys and nacl raise many kinds; what they say may hold the seed
            raise KeysError(f"{SIGNING} holds no seed of an account's signing key") from error
        if not public.startswith("A") or not account.startswith("A"):
            raise KeysError(f"{SIGNING} and {ACCOUNT} must be keys of an account")
        return cls(account, public, seed)


def new_platform(draw: Draw, now: int) -> dict[str, bytes]:
    """Return the data of a Secret for a NATS server that is to be set up; `now` in seconds."""
    operator, account, signing = (_seed(draw, kind) for kind in _PLATFORM)
    return _platform(operator, account=account, signing=signing, signers=[_public(signing)], now=now)


def renewed_platform(data: Mapping[str, bytes], draw: Draw, now: int) -> dict[str, bytes]:
    """Return data with a new signing key; the former key's users stay valid until the next one. Raises `KeysError`."""
    before = NatsIssuer.of(data).public
    signing = _seed(draw, nkeys.PREFIX_BYTE_ACCOUNT)
    try:
        operator, account = data[OPERATOR_SEED].strip(), data[ACCOUNT_SEED].strip()
    except KeyError as error:
        raise KeysError(f"{error.args[0]} is missing: without it a new signing key can't be vouched for") from None
    return _platform(operator, account=account, signing=signing, signers=[_public(signing), before], now=now)


def new_user(issuer: NatsIssuer, name: str, subjects: str, draw: Draw, now: int) -> bytes:
    """Return the file of credentials of a user that may publish and subscribe to `subjects` only."""
    seed = _seed(draw, nkeys.PREFIX_BYTE_USER)
    only = {"allow": [subjects]}
    limits = {"subs": -1, "data": -1, "payload": -1}
    claims = {"pub": only, "sub": only, **limits, "issuer_account": issuer.account, "type": "user", "version": 2}
    token = _signed(_pair(issuer.seed), subject=_public(seed), name=name, nats=claims, now=now)
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    ).encode()


def is_user_of(credentials: bytes, issuer: NatsIssuer, subjects: str) -> bool:
    """Return whether a credentials file is this issuer's for exactly these subjects, by its public claims."""
    claims = _claims(credentials)
    nats = claims.get("nats")
    if not isinstance(nats, dict):
        return False
    only = {"allow": [subjects]}
    return (claims.get("iss"), nats.get("issuer_account")) == (issuer.public, issuer.account) and (
        nats.get("pub"),
        nats.get("sub"),
    ) == (only, only)


_PLATFORM: Final = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_ACCOUNT)
_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_UNLIMITED: Final = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1}


def _platform(operator: bytes, account: bytes, signing: bytes, signers: Sequence[str], now: int) -> dict[str, bytes]:
    holder, owner = _public(account), _pair(operator)
    about = {"type": "account", "version": 2, "signing_keys": list(signers), "limits": _UNLIMITED | {"wildcards": True}}
    account_token = _signed(owner, subject=holder, name="dynamo", nats=about, now=now)
    operator_token = _signed(
        owner, subject=_public(operator), name="dynamo", nats={"type": "operator", "version": 2}, now=now
    )
    text = f'operator: "{operator_token}"\nresolver: MEMORY\nresolver_preload: {{ {holder}: "{account_token}" }}\n'
    return {
        SERVER_CONF: text.encode(),
        ACCOUNT: holder.encode(),
        SIGNING: signing,
        OPERATOR_SEED: operator,
        ACCOUNT_SEED: account,
    }


def _signed(signer: Any, subject: str, name: str, nats: Mapping[str, Any], now: int) -> str:
    """Return a JWT as NATS wants it; its id is a digest of its claims."""
    claims = {"iat": now, "iss": signer.public_key.decode(), "name": name, "sub": subject, "nats": dict(nats)}
    digest = hashlib.sha256(_json(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_base64(_json(_HEADER))}.{_base64(_json(claims))}"
    return f"{text}.{_base64(signer.sign(text.encode()))}"


def _claims(credentials: bytes) -> dict[str, Any]:
    """Return the claims of the token in a credentials file; empty where there is none."""
    lines = [line.strip() for line in credentials.decode("utf-8", "replace").splitlines()]
    parts = next((line.split(".") for line in lines if line.count(".") == 2), None)
    if parts is None:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def _seed(draw: Draw, kind: int) -> bytes:
    return bytes(nkeys.encode_seed(draw(), kind))


def _pair(seed: bytes) -> Any:
    return nkeys.from_seed(seed)


def _public(seed: bytes) -> str:
    return str(_pair(seed).public_key.decode())


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
