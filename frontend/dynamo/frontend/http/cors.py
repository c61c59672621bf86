"""Cross-origin answers, by flag: pure functions from a request's headers to response headers.

Not a middleware: those wrap `send`, and a wrapped send costs on every token. The hot
routes add the headers themselves, `app.py` does it for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Headers = list[tuple[bytes, bytes]]
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after")
_METHODS = (b"access-control-allow-methods", b"GET, POST, OPTIONS")


class Cors:
    """Which origins browsers may call from."""

    def __init__(self, origins: Sequence[str]) -> None:
        # One environment variable holds them all, separated by commas or spaces.
        names = [name.rstrip("/") for origin in origins for name in origin.replace(",", " ").split()]
        self._any = "*" in names
        self._origins = {name.encode() for name in names}

    @classmethod
    def of(cls, origins: Sequence[str]) -> Cors | None:
        """None where no origin may."""
        cors = cls(origins)
        return cors if cors._origins else None

    def headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return what an answer carries; empty where the origin is not allowed or none is."""
        origin = next((value for name, value in request if name == b"origin"), None)
        if origin is None or not (self._any or origin in self._origins):
            return []
        allowed = b"*" if self._any else origin
        return [(b"access-control-allow-origin", allowed), _EXPOSED, (b"vary", b"origin")]

    def preflight(self, request: Sequence[tuple[bytes, bytes]]) -> Headers | None:
        """Return the headers that answer a preflight; None where the request is none, or not allowed."""
        asked = dict(request)
        if b"access-control-request-method" not in asked or not (allowed := self.headers(request)):
            return None
        wanted = asked.get(b"access-control-request-headers", b"authorization, content-type")
        return [*allowed, _METHODS, (b"access-control-allow-headers", wanted), (b"access-control-max-age", b"600")]
