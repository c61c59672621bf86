"""Leases of etcd, and the one stream on which a process renews them.

A thousand processes at rest do little but renew a lease every three seconds. A call for each renewal
opens and closes a stream; one that stays open costs about half.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc  # type: ignore[import-untyped]
from aetcd import rpc  # type: ignore[import-untyped]

from dynamo.runtime.discovery.etcd_connection import CALL_TIMEOUT, Cluster, Connection
from dynamo.runtime.discovery.store import LeaseLost
from dynamo.runtime.errors import CannotConnect

log = logging.getLogger(__name__)


class LeaseRenewals:
    """Renews leases, one at a time, on a stream that is opened where there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._on: Connection | None = None
        self._stream: Any = None
        self._turn = asyncio.Lock()

    async def renew(self, lease: int) -> bool:
        """Renew a lease; False where etcd has none of that number. Raises `CannotConnect`."""
        async with self._turn:
            return await self._cluster.call(lambda on: self._renew(on, lease)) > 0

    def close(self) -> None:
        """Close the stream; the next renewal opens another one."""
        stream, self._stream, self._on = self._stream, None, None
        if stream is not None:
            stream.cancel()

    async def _renew(self, on: Connection, lease: int) -> int:
        stream = self._open(on)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await stream.write(rpc.LeaseKeepAliveRequest(ID=lease))
                answer = await stream.read()
        except TimeoutError:
            self.close()
            self._cluster.silent(on, "did not renew a lease in time")
        except asyncio.InvalidStateError:  # so gRPC says that the stream has ended since we looked
            self.close()
            raise CannotConnect(f"etcd at {on.endpoint} ended the lease's stream") from None
        except BaseException:  # an answer that comes later would be taken for the next one's
            self.close()
            raise
        if answer is grpc.aio.EOF or lease != answer.ID:
            self.close()
            raise CannotConnect(f"etcd at {on.endpoint} ended the lease's stream")
        return int(answer.TTL)

    def _open(self, on: Connection) -> Any:
        """Return the stream of this connection: the one there is, unless it has ended meanwhile."""
        if self._on is not on or self._stream.done():
            self.close()
            self._on, self._stream = on, on.lease.LeaseKeepAlive(metadata=on.metadata)
        return self._stream


class EtcdLease:
    """A lease of etcd."""

    def __init__(self, cluster: Cluster, renewals: LeaseRenewals, lease: int) -> None:
        self._cluster, self._renewals, self._id = cluster, renewals, lease
        self._alive = True

    @property
    def id(self) -> int:
        return self._id

    @property
    def alive(self) -> bool:
        return self._alive

    async def keep_alive(self) -> bool:
        self._alive = await self._renewals.renew(self._id)
        return self._alive

    async def revoke(self) -> None:
        async def revoke(on: Connection) -> None:
            request = rpc.LeaseRevokeRequest(ID=self._id)
            await on.lease.LeaseRevoke(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

        self._alive = False
        try:
            await self._cluster.call(revoke)
        except LeaseLost:
            log.debug("the lease had ended before it was given back")
