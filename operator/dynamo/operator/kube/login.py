"""Who we are at the API server, for kopf and for our own session alike: a `Login` around kopf's `ConnectionInfo`.

A pod's token is replaced while the process runs, so it is read anew every minute, and at once
where the API server refuses it. On a laptop the user's kubeconfig counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf

from dynamo.operator.budget import Budget
from dynamo.operator.fence import Fence
from dynamo.operator.kube import Api, Count

FRESH_SECONDS = 60.0
RETRY_SECONDS = 1.0
"""After a refusal the credentials are read anew at once, but not more often."""

Find = Callable[[], kopf.ConnectionInfo | None]

log = logging.getLogger(__name__)


class LoginError(Exception):
    """There is nothing to log in with."""


class Login:
    """Reads the credentials, and keeps them for a minute. kopf's thread asks, too."""

    def __init__(self, find: Find | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find or _found, clock
        self._kept: tuple[kopf.ConnectionInfo, float] | None = None

    def info(self, fresh: float = FRESH_SECONDS) -> kopf.ConnectionInfo:
        """At most `fresh` seconds old, or older where they can't be read any more; raises `LoginError`."""
        kept = self._kept
        if kept is not None and self._clock() - kept[1] < fresh:
            return kept[0]
        try:
            found = self._read()
        except LoginError as error:
            if kept is None:
                raise
            log.warning("the credentials could not be read anew: %s", error)
            found = kept[0]
        self._kept = found, self._clock()
        return found

    def headers(self, refused: bool = False) -> Mapping[str, str]:
        """What every request bears; read anew where the last ones were refused."""
        return self.info(RETRY_SECONDS if refused else FRESH_SECONDS).as_http_headers()

    def _read(self) -> kopf.ConnectionInfo:
        try:
            found = self._find()
        except Exception as error:  # a missing file, no YAML, no context: whatever kopf's reader stumbles over
            raise LoginError(f"{error}: run in a pod with a service account, or point KUBECONFIG to a file") from error
        if found is None:
            raise LoginError("no credentials: run in a pod with a service account, or point KUBECONFIG to a file")
        return found

    def api(self, count: Count | None = None, may_write: Callable[[], bool] = lambda: True) -> Api:
        """A session of our own, which asks before each write but a lease's; to be closed."""
        info = self.info()
        connector = Fence(may_write, ssl=info.as_ssl_context(), limit=0)
        return Api(
            aiohttp.ClientSession(connector=connector),
            info.server,
            budget=Budget(),
            count=count,
            credentials=self.headers,
        )


def _found() -> kopf.ConnectionInfo | None:
    settings = kopf.OperatorSettings()
    given: Any = {"settings": settings}
    found = kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)
    return found if isinstance(found, kopf.ConnectionInfo) else None
