"""Rules of RFC 9112 for requests that uvicorn doesn't keep: a host, a target, a version. Pure.

`protocol.py` reads requests by them, for the frontend and for the system servers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_HOST: Final = re.compile(
    rb"(?:\[[0-9A-Za-z:.%_~-]{2,64}\]|[0-9A-Za-z._~!$&'()*+,;=%-]{0,255})(?::[0-9]{0,5})?"
)  # fmt: skip
_ABSOLUTE: Final = re.compile(rb"(?i)https?://([^/?#]*)(.*)", re.DOTALL)
_OFFERS: Final = frozenset({b"upgrade", b"http2-settings"})
VERSIONS: Final = ("1.1", "1.0")
Fields = Sequence[tuple[bytes, bytes]]


class BadRequestError(Exception):
    """A request that breaks a rule of HTTP/1.1; its text says which."""


class Target(NamedTuple):
    """Target of a request line."""

    path: bytes
    """With its query."""
    authority: bytes | None = None
    """From the absolute form, where it stands in for `Host`."""


def check_version(version: str) -> None:
    """Raise `BadRequestError` unless this version of HTTP is served."""
    if version not in VERSIONS:
        raise BadRequestError("The request names no version of HTTP that is served here: it takes HTTP/1.1.")


def check_host(version: str, fields: Fields) -> None:
    """Raise `BadRequestError` unless a request names its host as RFC 9112, section 3.2 wants it. Pure."""
    hosts = [value for name, value in fields if name == b"host"]
    if not hosts:
        if version == "1.1":
            raise BadRequestError("The request has no Host header; HTTP/1.1 asks for one.")
    elif len(hosts) > 1:
        raise BadRequestError(f"The request has {len(hosts)} Host headers; it may have one.")
    elif _HOST.fullmatch(hosts[0].strip(b" \t")) is None:
        raise BadRequestError("The request's Host header is no host name with an optional port.")


def target_of(method: bytes, url: bytes) -> Target:
    """Read a request target that doesn't begin with `/`; raise `BadRequestError` where it can't be served. Pure."""
    if (match := _ABSOLUTE.fullmatch(url)) is not None:
        authority, path = match.groups()
        if not authority or _HOST.fullmatch(authority) is None:
            raise BadRequestError("The request's URL has no usable host.")
        return Target(path if path.startswith(b"/") else b"/" + path, authority)
    if url == b"*" and method == b"OPTIONS":
        return Target(b"/")
    raise BadRequestError("The request's target is neither a path nor an http URL.")


def plain_head(method: bytes, url: bytes, version: str, fields: Fields) -> bytes:
    """Write the head of a request without its offer to change the protocol. Pure."""
    if method == b"CONNECT":
        raise BadRequestError("This is no proxy: CONNECT isn't served.")
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in fields:
        if b"\r" in value or b"\n" in value:
            raise BadRequestError("A header of the request has a line break.")
        if name == b"connection":
            kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFERS]
            value = b",".join(kept)
        if name not in _OFFERS:
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"
