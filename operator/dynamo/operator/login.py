"""Who we are at the API server, for kopf and for our own session alike: a `Login` around kopf's `ConnectionInfo`.

A pod's token is replaced while the process runs, so it is read anew every minute. On a laptop
the user's kubeconfig counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import aiohttp
import kopf

from dynamo.operator.budget import Budget
from dynamo.operator.kube import Api, Count

FRESH_SECONDS = 60.0

Find = Callable[[], kopf.ConnectionInfo | None]


class LoginError(Exception):
    """There is nothing to log in with."""


class Login:
    """Reads the credentials, and keeps them for a minute."""

    def __init__(self, find: Find | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find or _found, clock
        self._info: kopf.ConnectionInfo | None = None
        self._at = 0.0

    def info(self) -> kopf.ConnectionInfo:
        """As of now; raises `LoginError`."""
        if self._info is None or self._clock() - self._at > FRESH_SECONDS:
            found = self._find()
            if found is None:
                raise LoginError("no credentials: run in a pod with a service account, or point KUBECONFIG to a file")
            self._info, self._at = found, self._clock()
        return self._info

    def api(self, count: Count | None = None) -> Api:
        """A session of our own; to be closed."""
        info = self.info()
        connector = aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=64)
        return Api(
            aiohttp.ClientSession(connector=connector),
            info.server,
            budget=Budget(),
            count=count,
            credentials=lambda: self.info().as_http_headers(),
        )


def _found() -> kopf.ConnectionInfo | None:
    settings = kopf.OperatorSettings()
    given: Any = {"settings": settings}
    found = kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)
    return found if isinstance(found, kopf.ConnectionInfo) else None
