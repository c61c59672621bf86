"""Leader election over a Lease: `lead` returns once we lead, `keep` returns when we don't any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from dynamo.operator import lease
from dynamo.operator.answers import ApiError
from dynamo.operator.kinds import LEASES
from dynamo.operator.kube import Api

RELEASE_SECONDS = 3.0
"""A lease that can't be given back runs out by itself."""

log = logging.getLogger(__name__)


class Election:
    """One candidate."""

    def __init__(
        self, api: Api, namespace: str, name: str, me: str, *, clock: Callable[[], float] = time.monotonic,
        period: float = lease.PERIOD,
    ) -> None:  # fmt: skip
        self._api, self._namespace, self._name, self._me = api, namespace, name, me
        self._clock, self._period = clock, period
        self._sight = lease.Sight()
        self._renewed: float | None = None

    def leads(self) -> bool:
        """Whether we may act."""
        return lease.is_leading(self._renewed, self._clock())

    async def lead(self) -> None:
        """Waits until the lease is ours."""
        ours = await self.step()
        while not ours:
            await asyncio.sleep(self._period)
            ours = await self.step()

    async def keep(self) -> None:
        """Renews until somebody else has it, or until it couldn't be renewed in time."""
        while self.leads():
            await asyncio.sleep(self._period)
            try:
                async with asyncio.timeout(self._left()):
                    await self.step()
            except TimeoutError:
                return

    async def step(self) -> bool:
        """One look at the lease; True if it is ours now. What fails is tried again by the caller."""
        begun = self._clock()
        try:
            found = await self._api.get(LEASES, self._namespace, self._name)
            self._sight = lease.seen(found, self._sight, self._clock())
            if not lease.may_write(found, self._sight, self._me, self._clock()):
                self._renewed = None
                return False
            body = lease.claimed(found, self._me, datetime.now(UTC), self._namespace, self._name)
            if found is None:
                await self._api.create(LEASES, self._namespace, body)
            else:
                await self._api.replace(LEASES, self._namespace, self._name, body)
        except ApiError as error:
            log.warning("the lease %s could not be renewed: %s", self._name, error)
            return False
        self._renewed = begun
        return True

    async def release(self) -> None:
        """Gives the lease back, if it is ours and the server answers soon."""
        self._renewed = None
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._given_back()
        except (ApiError, TimeoutError) as error:
            log.warning("the lease %s could not be given back: %s", self._name, str(error) or "no answer in time")

    async def _given_back(self) -> None:
        found = await self._api.get(LEASES, self._namespace, self._name)
        if found and found["spec"].get("holderIdentity") == self._me:
            await self._api.replace(LEASES, self._namespace, self._name, lease.released(found))

    def _left(self) -> float:
        return max(0.0, (self._renewed or 0.0) + lease.DEADLINE - self._clock())
