"""Cross-origin answers: pure functions from a request's origin to response headers.

Pages of this machine may call unless a flag says otherwise: a web page under development asks the server beside it.

Not a middleware: those wrap `send`, and a wrapped send costs on every token. The hot
routes add the headers themselves, `app.py` does it for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Headers = list[tuple[bytes, bytes]]
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, request-id, retry-after, x-dynamo-ignored-fields")
_METHODS = (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS")
_LOOPBACK = re.compile(rb"https?://(?:localhost|[a-z0-9-]{1,63}\.localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?")
NONE = "none"


class Cors:
    """Which origins browsers may call from."""

    def __init__(self, origins: Sequence[str]) -> None:
        # One environment variable holds them all, separated by commas or spaces.
        names = [name.rstrip("/") for origin in origins for name in origin.replace(",", " ").split()]
        self._any, self._of_this_machine = "*" in names, not names
        self._origins = {name.encode() for name in names} - {NONE.encode()}

    @classmethod
    def of(cls, origins: Sequence[str]) -> Cors | None:
        """Return the origins' rule, without any that of pages of this machine; None where no origin may."""
        cors = cls(origins)
        return cors if cors._origins or cors._of_this_machine else None

    def headers(self, origin: bytes) -> Headers:
        """Return what an answer to a page of this origin carries; empty where it is not allowed."""
        if not (self._any or origin in self._origins or (self._of_this_machine and _LOOPBACK.fullmatch(origin))):
            return []
        allowed = b"*" if self._any else origin
        return [(b"access-control-allow-origin", allowed), _EXPOSED, (b"vary", b"origin")]

    def preflight(self, request: Sequence[tuple[bytes, bytes]]) -> Headers | None:
        """Return the headers that answer a preflight; None where the request is none, or not allowed."""
        asked = dict(request)
        if b"access-control-request-method" not in asked or b"origin" not in asked:
            return None
        if not (allowed := self.headers(asked[b"origin"])):
            return None
        wanted = asked.get(b"access-control-request-headers", b"authorization, content-type")
        return [*allowed, _METHODS, (b"access-control-allow-headers", wanted), (b"access-control-max-age", b"600")]
