"""Keeps a process that slept from writing as the leader that it no longer is: `Fence` and `fenced`, for `client.Api`.

Two walls, since neither is enough. Here: a request is asked about when it has its connection, and once more
in the very call that hands its bytes to the kernel; the lease's age is measured by a clock that goes on while
the process, or the machine, sleeps. What passes the last question just before a pause meets the second wall
at the server: each write bears the uid and resourceVersion of what it was meant for, or that nothing
may be there; a leader that follows another writes the pipeline's status (`term`) before anything else of it, so
that no status of the one before is taken any more. What is left to such a request is to create what nobody else has:
an Event, or an object of a spec that was edited meanwhile. The chart's `operator.leaderPolicy` keeps these back too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import LEASES

MayWrite = Callable[[], bool]


def awake_or_not() -> float:
    """Return seconds on a clock that counts also while the machine is suspended, where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Fence(aiohttp.TCPConnector):
    """Lets reads and writes of leases pass, and other writes as long as `may_write` says so."""

    def __init__(self, may_write: MayWrite, **options: Any) -> None:
        super().__init__(**options)
        self._may_write = may_write

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> aiohttp.connector.Connection:
        """Connect; raises `ApiError` without an answer's code where a write may not be sent."""
        connection = await super().connect(req, traces, timeout)
        if not _is_free(req) and not self._may_write():
            connection.release()
            raise _refused()
        return connection


def fenced(may_write: MayWrite) -> type[aiohttp.ClientRequest]:
    """Return a session's `request_class` that asks last: nothing is awaited between its question and the socket."""

    class Fenced(aiohttp.ClientRequest):
        async def write_bytes(
            self, writer: AbstractStreamWriter, conn: aiohttp.connector.Connection, content_length: int | None = None
        ) -> None:
            if _is_free(self) or may_write():
                # The head was kept back until now: both go out with one call, or neither does.
                await super().write_bytes(writer, conn, content_length)
                return
            if conn.protocol is not None:
                conn.protocol.set_exception(_refused())
            conn.close()

    return Fenced


def _is_free(request: aiohttp.ClientRequest) -> bool:
    return request.method == "GET" or LEASES.plural in request.url.path.split("/")


def _refused() -> ApiError:
    return ApiError(0, "not written: another replica may be the leader by now")
