"""Who may ask what on the port of clients: keys, and routes that are for those who run the frontend.

Pure over the keys; `app.py` asks before anything of a request but its head was read. On the system port, and on the
socket of a supervisor, everything is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dynamo.frontend.errors import ApiError, unknown_route
from dynamo.frontend.http.api_keys import ApiKeys
from dynamo.frontend.http.connection import CONNECTION
from dynamo.runtime.http.local_callers import from_this_machine

WORKERS: Final = "/console/workers"
UNDER_WAY: Final = "/requests"
"""The oldest requests that have not ended."""
SYSTEM_ROUTES: Final = ("/metrics", "/version", "/openapi.json", "/docs", "/busy_threshold", WORKERS, UNDER_WAY)
REQUESTS: Final = "/requests/"
"""Before the id of a request."""
ON_SYSTEM_PORT: Final = "on_system_port"
"""Key of a request's state: it came on the port of those who run the frontend."""
PING: Final = "/ping"
PROBES: Final = ("/live", "/health", PING)
_PROBED: Final = ("GET", "HEAD")
_PINGED: Final = (*_PROBED, "POST")
DETAILS: Final = "details"
"""Key of a request's state: whether `/health` may say more than a word. Not there: it may."""
BAD_KEY: Final = "invalid_api_key"
CALLER_FIELDS: Final = (b"authorization", b"x-api-key", b"x-tenant-id")
Scope = Any


def is_system(path: str) -> bool:
    """Tell whether a path belongs to those who run the frontend."""
    return path in SYSTEM_ROUTES or path.startswith(("/busy_threshold/", REQUESTS))


def is_private(scope: Scope) -> bool:
    """Tell whether a request came on a socket that only a supervisor knows, or from within this process."""
    connection = scope.get(CONNECTION)
    return scope.get("client") is None if connection is None else getattr(connection, "private", False)


def is_local(scope: Scope) -> bool:
    """Tell whether a request was made on this machine, by nobody else's order."""
    if is_private(scope):
        return True
    client = scope.get("client")
    return from_this_machine(client[0] if client else None, (name for name, _ in scope["headers"]))


def no_key(was_shown: bool) -> ApiError:
    """Return 401, as OpenAI has it; the key isn't repeated."""
    if was_shown:
        text = "Incorrect API key provided. Ask whoever runs this server for one that is known here."
    else:
        text = "You didn't provide an API key. Send it as a header: 'Authorization: Bearer KEY', or 'x-api-key: KEY'."
    return ApiError(401, text, code=BAD_KEY, headers=[("www-authenticate", "Bearer")])


class Guard:
    """Looks at each request of the port of clients."""

    def __init__(self, keys: ApiKeys | None, public: bool, is_page: Callable[[Scope], bool] = lambda _: False) -> None:
        """Take the keys; `is_page` tells what holds no data, and is shown without one."""
        self._keys, self._public, self._is_page = keys, public, is_page

    def look(self, scope: Scope) -> ApiError | None:
        """Return why a request isn't answered; None: it is.

        Where keys are asked for, its caller is its key from now on.
        """
        if is_private(scope):
            return None
        path, keys = scope["path"], self._keys
        caller = None if keys is None else keys.caller(scope["headers"])
        if path in PROBES and scope["method"] in (_PINGED if path == PING else _PROBED):
            known = self._public and (keys is None or caller is not None)
            scope.setdefault("state", {})[DETAILS] = known
            return None
        if not self._public and is_system(path):
            return unknown_route(scope["method"], path)
        if keys is None:
            return None
        if caller is None:
            return None if self._is_page(scope) else no_key(keys.shown(scope["headers"]))
        # The key itself goes no further, and what a client says of its tenant counts less than the key it was given.
        others = [field for field in scope["headers"] if field[0] not in CALLER_FIELDS]
        scope["headers"] = [*others, (b"authorization", caller)]
        return None
