"""Who we are at the API server, for kopf and for our own session alike: a `Login` around kopf's `ConnectionInfo`.

A pod's token is replaced while the process runs, so it is read again every minute, and at once
where the API server refuses it. On a laptop the user's kubeconfig counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf

from dynamo.operator.kube.client import Api, Count
from dynamo.operator.kube.leader_election import Fence, fenced
from dynamo.operator.namespace_turns import Budget

FRESH_SECONDS = 60.0
RETRY_SECONDS = 1.0
"""After a refusal the credentials are read again at once, but not more often."""

Find = Callable[[], kopf.ConnectionInfo | None]

log = logging.getLogger(__name__)


class LoginError(Exception):
    """Raised when there is nothing to log in with."""


class Login:
    """Reads the credentials, and keeps them for a minute. kopf's thread asks, too."""

    def __init__(self, find: Find | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find or _credentials, clock
        self._kept: tuple[kopf.ConnectionInfo, float] | None = None

    def info(self, fresh: float = FRESH_SECONDS) -> kopf.ConnectionInfo:
        """Return credentials at most `fresh` seconds old, or older where they can't be read; raises `LoginError`."""
        kept = self._kept
        if kept is not None and self._clock() - kept[1] < fresh:
            return kept[0]
        try:
            info = self._read()
        except LoginError as error:
            if kept is None:
                raise
            log.warning("could not read the credentials again, keeping the last ones: %s", error)
            info = kept[0]
        self._kept = info, self._clock()
        return info

    def headers(self, refused: bool = False) -> Mapping[str, str]:
        """Return what every request bears; read again where the last ones were refused."""
        return self.info(RETRY_SECONDS if refused else FRESH_SECONDS).as_http_headers()

    def _read(self) -> kopf.ConnectionInfo:
        try:
            info = self._find()
        except Exception as error:  # a missing file, no YAML, no context: whatever kopf's reader stumbles over
            raise LoginError(f"{error}: run in a pod with a service account, or set KUBECONFIG to a file") from error
        if info is None:
            raise LoginError("no credentials: run in a pod with a service account, or set KUBECONFIG to a file")
        return info

    def api(self, count: Count | None = None, may_write: Callable[[], bool] = lambda: True) -> Api:
        """Return a session of our own, which asks before each write but a lease's; to be closed."""
        info = self.info()
        connector = Fence(may_write, ssl=info.as_ssl_context(), limit=0)
        return Api(
            aiohttp.ClientSession(connector=connector, request_class=fenced(may_write)),
            info.server,
            budget=Budget(),
            count=count,
            credentials=self.headers,
        )


def _credentials() -> kopf.ConnectionInfo | None:
    settings = kopf.OperatorSettings()
    given: Any = {"settings": settings}
    info = kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)
    return info if isinstance(info, kopf.ConnectionInfo) else None
