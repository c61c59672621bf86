"""The `Store` port over etcd. Loaded only where etcd is used: gRPC is expensive to import.

`DistributedRuntime.create` makes one per process. Every call has a deadline; a watch
ends with `CannotConnect` when its connection does, and is opened again by `prefix_watch`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
from aetcd import rpc  # type: ignore[import-untyped]
from aetcd.utils import prefix_range_end  # type: ignore[import-untyped]

from dynamo.runtime.config import EtcdConfig
from dynamo.runtime.discovery.etcd_connection import CALL_TIMEOUT, Cluster, Connection, still_wanted
from dynamo.runtime.discovery.etcd_lease import EtcdLease, LeaseRenewals
from dynamo.runtime.discovery.store import Change, Compacted, Entry, Lease, Snapshot
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EPOCH_KEY
from dynamo.runtime.process.logs import without_secrets

RETRY: Final = 0.3
SAY_AGAIN: Final = 10.0
MOST_KEYS: Final = 100
"""In one transaction; etcd takes 128 operations (`--max-txn-ops`)."""

log = logging.getLogger(__name__)


class EtcdStore:
    """Keep and watch keys in etcd."""

    def __init__(self, config: EtcdConfig | None = None) -> None:
        self._config = config or EtcdConfig()
        self._cluster = Cluster(self._config)
        self._renewals = LeaseRenewals(self._cluster)

    async def connect(self) -> None:
        """Return when etcd answers; `CannotConnect` after the configuration's limit."""
        where = without_secrets(self._cluster.name)
        started, logged = time.monotonic(), 0.0
        while True:
            try:
                await self.read(EPOCH_KEY)
            except CannotConnect as error:
                waited = time.monotonic() - started
                if waited >= self._config.start_limit:
                    raise CannotConnect(
                        f"etcd at {where} did not answer within {waited:.0f} s ({error}): "
                        "start it, or set ETCD_ENDPOINTS to where it is"
                    ) from error
                if not logged or waited - logged >= SAY_AGAIN:
                    logged = waited or 0.001
                    log.warning("waiting for etcd at %s (ETCD_ENDPOINTS) since %.0f s: %s", where, waited, error)
                await asyncio.sleep(RETRY)
            else:
                if logged:
                    log.info("etcd at %s answers", where)
                return

    async def close(self) -> None:
        self._renewals.close()
        await self._cluster.close()

    async def grant(self, ttl: float) -> Lease:
        async def grant(on: Connection) -> Any:
            request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl))
            return await on.lease.LeaseGrant(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

        return EtcdLease(self._cluster, self._renewals, (await self._cluster.call(grant)).ID)

    async def put(self, key: str, value: bytes, lease: Lease | None = None) -> int:
        async def put(on: Connection) -> Any:
            return await on.kv.Put(_put(key, value, lease), timeout=CALL_TIMEOUT, metadata=on.metadata)

        return int((await self._cluster.call(put)).header.revision)

    async def put_if(
        self, key: str, value: bytes, expected: bytes | None, lease: Lease | None = None
    ) -> tuple[bool, int, bytes | None]:
        request = rpc.TxnRequest(
            compare=[_equals(key, expected)],
            success=[rpc.RequestOp(request_put=_put(key, value, lease))],
            failure=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key.encode()))],
        )

        async def transact(on: Connection) -> Any:
            return await on.kv.Txn(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

        answer = await self._cluster.call(transact)
        if answer.succeeded:
            return True, int(answer.header.revision), expected
        entries = answer.responses[0].response_range.kvs
        return False, int(answer.header.revision), entries[0].value if entries else None

    async def delete(self, key: str) -> None:
        async def delete(on: Connection) -> None:
            request = rpc.DeleteRangeRequest(key=key.encode())
            await on.kv.DeleteRange(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

        await self._cluster.call(delete)

    async def read(self, prefix: str) -> Snapshot:
        first = prefix.encode()

        async def read(on: Connection) -> Any:
            request = rpc.RangeRequest(key=first, range_end=prefix_range_end(first))
            return await on.kv.Range(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

        answer = await self._cluster.call(read)
        return Snapshot(int(answer.header.revision), [_entry(kv) for kv in answer.kvs])

    async def read_keys(self, keys: Sequence[str]) -> Snapshot:
        revision, entries = 0, list[Entry]()
        for begin in range(0, len(keys), MOST_KEYS):
            some = [rpc.RangeRequest(key=key.encode()) for key in keys[begin : begin + MOST_KEYS]]
            request = rpc.TxnRequest(success=[rpc.RequestOp(request_range=key) for key in some])

            async def transact(on: Connection, request: Any = request) -> Any:
                return await on.kv.Txn(request, timeout=CALL_TIMEOUT, metadata=on.metadata)

            answer = await self._cluster.call(transact)
            revision = int(answer.header.revision)
            entries += [_entry(kv) for part in answer.responses for kv in part.response_range.kvs]
        return Snapshot(revision, entries)

    async def watch(self, prefix: str, start_revision: int) -> AsyncIterator[list[Change]]:
        on, call = await self._cluster.call(lambda on: self._open_watch(on, prefix, start_revision))
        try:
            while True:
                answer = await self._next(on, call)
                if answer.events:
                    yield [_change(event) for event in answer.events]
        finally:
            call.cancel()

    async def _open_watch(self, on: Connection, prefix: str, start_revision: int) -> tuple[Connection, Any]:
        first = prefix.encode()
        create = rpc.WatchCreateRequest(
            key=first, range_end=prefix_range_end(first), start_revision=start_revision, progress_notify=True
        )
        call = on.watch.Watch(metadata=on.metadata)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await call.write(rpc.WatchRequest(create_request=create))
                answer = await call.read()
        except TimeoutError:
            call.cancel()
            self._cluster.silent(on, "did not open a watch in time")
        except BaseException:
            call.cancel()
            raise
        try:
            _check(answer, on)
            if start_revision > answer.header.revision + 1:
                raise Compacted("the store is younger than what is watched for")
        except BaseException:
            call.cancel()
            raise
        return on, call

    async def _next(self, on: Connection, call: Any) -> Any:
        try:
            answer = await call.read()
        except grpc.aio.AioRpcError as error:
            self._cluster.failed(on, error)
        except asyncio.CancelledError:
            still_wanted()
            raise CannotConnect(f"etcd at {on.endpoint}: the connection was closed") from None
        return _check(answer, on)


def _check(answer: Any, on: Connection) -> Any:
    """Raise where etcd has ended the watch."""
    if answer is grpc.aio.EOF:
        raise CannotConnect(f"etcd at {on.endpoint} ended a watch")
    if answer.compact_revision:
        raise Compacted
    if answer.canceled:
        raise CannotConnect(f"etcd at {on.endpoint} ended a watch: {answer.cancel_reason or 'no reason given'}")
    return answer


def _entry(kv: Any) -> Entry:
    return Entry(kv.key.decode(), kv.value, int(kv.mod_revision))


def _change(event: Any) -> Change:
    deleted = event.type == event.DELETE
    return Change(event.kv.key.decode(), None if deleted else event.kv.value, int(event.kv.mod_revision))


def _put(key: str, value: bytes, lease: Lease | None) -> Any:
    return rpc.PutRequest(key=key.encode(), value=value, lease=lease.id if lease else 0)


def _equals(key: str, expected: bytes | None) -> Any:
    if expected is None:
        return rpc.Compare(key=key.encode(), target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=0)
    return rpc.Compare(key=key.encode(), target=rpc.Compare.VALUE, result=rpc.Compare.EQUAL, value=expected)
