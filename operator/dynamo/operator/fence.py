"""Keeps a process that slept from writing as the leader that it no longer is: `Fence`, a connector for `kube.Api`.

Asked when a request already has its connection, right before it is sent: while connections are
made, a paused process may have lost its lease. What was handed to the kernel before the pause
is sent nevertheless; Kubernetes has no fencing, so such a write bears the uid or the version
that it was meant for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp

from dynamo.operator.answers import ApiError
from dynamo.operator.kinds import LEASES


class Fence(aiohttp.TCPConnector):
    """Lets reads and writes of leases pass, and other writes as long as `may_write` says so."""

    def __init__(self, may_write: Callable[[], bool], **options: Any) -> None:
        super().__init__(**options)
        self._may_write = may_write

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """Raises `ApiError` without an answer's code."""
        found = await super().connect(req, traces, timeout)
        is_free = req.method == "GET" or LEASES.plural in req.url.path.split("/")
        if not is_free and not self._may_write():
            found.release()
            raise ApiError(0, "another replica may lead by now: nothing is written")
        return found
