"""Which replica leads, and that only the leader writes: `Election` over a Lease, `Fence` and `fenced` for `client.Api`.

A Lease, as controller-runtime's (15 s / 10 s / 2 s). `lead` returns once we lead, `keep` returns when we don't any
more. The decision is pure. Clocks of machines differ, so a lease is judged by how long *we* have seen it unchanged,
never by the time that stands in it. A leader that couldn't renew in time stops at once, five seconds before anybody
may follow.

A process that slept must not write as the leader that it no longer is. Two walls, since neither is enough. Here: a
request is asked about when it has its connection, and once more in the very call that hands its bytes to the kernel;
the lease's age is measured by a clock that goes on while the process, or the machine, sleeps. What passes the last
question just before a pause meets the second wall at the server: each write bears the uid and resourceVersion of what
it was meant for, or that nothing may be there; a leader that follows another writes the pipeline's status (`term`)
before anything else of it, so that no status of the one before is taken any more. What is left to such a request is to
create what nobody else has: an Event, or an object of a spec that was edited meanwhile. The chart's
`operator.leaderPolicy` keeps these back too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import LEASES

log = logging.getLogger(__name__)

DURATION = 15.0
"""Unchanged for so long, a lease is free."""
DEADLINE = 10.0
"""Not renewed for so long, a leader stops."""
PERIOD = 2.0
"""Between two reads of the lease."""

Lease = Mapping[str, Any]


@dataclass(frozen=True)
class LeaseObservation:
    """The lease as seen last and since when, on our own clock."""

    mark: tuple[str, str] | None = None
    since: float = 0.0


def observed(lease: Lease | None, before: LeaseObservation, now: float) -> LeaseObservation:
    """Return the observation after another read of the lease."""
    spec = (lease or {}).get("spec", {})
    mark = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")) if lease else None
    return before if mark == before.mark and lease else LeaseObservation(mark, now)


def may_take(lease: Lease | None, observation: LeaseObservation, me: str, now: float) -> bool:
    """Return whether to renew or to take it: it is ours, free, nobody's, or not there."""
    holder = (lease or {}).get("spec", {}).get("holderIdentity")
    return not holder or holder == me or now - observation.since >= DURATION


def claimed(lease: Lease | None, me: str, wall: datetime, namespace: str, name: str) -> dict[str, Any]:
    """Return the lease that says that we lead; with its resourceVersion, so that only one of two can write it."""
    spec = dict((lease or {}).get("spec", {}))
    text = wall.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if spec.get("holderIdentity") != me:
        spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if lease else 0)
        spec["acquireTime"] = text
    spec |= {"holderIdentity": me, "leaseDurationSeconds": int(DURATION), "renewTime": text}
    metadata = (lease or {}).get("metadata") or {"namespace": namespace, "name": name}
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": dict(metadata), "spec": spec}


def term(lease: Lease) -> int:
    """Return how often it has changed hands."""
    return int(lease["spec"].get("leaseTransitions") or 0)


def released(lease: Lease) -> dict[str, Any]:
    """Return the lease given back, so that the next leader needn't wait."""
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def is_leading(renewed: float | None, now: float) -> bool:
    """Return whether we may still act as the leader."""
    return renewed is not None and now - renewed < DEADLINE


_ALONE = "alone"
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_WRITTEN = re.compile(rf"{_NAME}/{_NAME}(/{_ALONE})?")


class Installation(NamedTuple):
    """An operator with its replicas."""

    namespace: str
    name: str
    """Of its lease."""
    elects: bool = True
    """Its leader renews the lease; a single replica may do without."""

    def __str__(self) -> str:
        return "/".join((self.namespace, self.name) if self.elects else (self.namespace, self.name, _ALONE))

    @classmethod
    def of(cls, text: str) -> Installation | None:
        """Return the installation that a status names; None for what can't be a name: it goes into a request's path."""
        if not _WRITTEN.fullmatch(text):
            return None
        namespace, _, rest = text.partition("/")
        name, _, how = rest.partition("/")
        return cls(namespace, name, how != _ALONE)

    def is_same(self, other: Installation) -> bool:
        """Return whether both are the same, however each makes sure of being the only one."""
        return self[:2] == other[:2]


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


RELEASE_SECONDS = 3.0
"""A lease that can't be given back runs out by itself."""


class Election:
    """Competes for the lease as one candidate."""

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        me: str,
        *,
        clock: Callable[[], float] = awake_or_not,
        period: float = PERIOD,
    ) -> None:
        self._api, self._namespace, self._name, self._me = api, namespace, name, me
        self._clock, self._period = clock, period
        self._observation = LeaseObservation()
        self._renewed: float | None = None
        self.term = 0
        """How often the lease has changed hands; 0 for the first leader of all, before whom nobody wrote."""

    def leads(self) -> bool:
        """Return whether we may act."""
        return is_leading(self._renewed, self._clock())

    async def lead(self) -> None:
        """Wait until the lease is ours."""
        ours = await self.step()
        while not ours:
            await asyncio.sleep(self._period)
            ours = await self.step()

    async def keep(self) -> None:
        """Renew until somebody else has it, or until it couldn't be renewed in time."""
        while self.leads():
            await asyncio.sleep(self._period)
            try:
                async with asyncio.timeout(self._left()):
                    await self.step()
            except TimeoutError:
                return

    async def step(self) -> bool:
        """Read the lease and renew or take it if we may; True if it is ours now. The caller tries again what fails."""
        begun = self._clock()
        try:
            current = await self._api.get(LEASES, self._namespace, self._name)
            self._observation = observed(current, self._observation, self._clock())
            if not may_take(current, self._observation, self._me, self._clock()):
                self._renewed = None
                return False
            body = claimed(current, me=self._me, wall=datetime.now(UTC), namespace=self._namespace, name=self._name)
            if current is None:
                await self._api.create(LEASES, self._namespace, body)
            else:
                await self._api.replace(LEASES, self._namespace, self._name, body)
        except ApiError as error:
            log.warning("could not renew the lease %s: %s", self._name, error)
            return False
        self._renewed, self.term = begun, term(body)
        return True

    async def release(self) -> None:
        """Give the lease back, if it is ours and the server answers soon."""
        self._renewed = None
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._given_back()
        except (ApiError, TimeoutError) as error:
            log.warning(
                "could not release the lease %s, it will expire: %s", self._name, str(error) or "no answer in time"
            )

    async def _given_back(self) -> None:
        current = await self._api.get(LEASES, self._namespace, self._name)
        if current and current["spec"].get("holderIdentity") == self._me:
            await self._api.replace(LEASES, self._namespace, self._name, released(current))

    def _left(self) -> float:
        return max(0.0, (self._renewed or 0.0) + DEADLINE - self._clock())
