"""Leader election over a Lease: `lead` returns once we lead, `keep` returns when we don't any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from dynamo.operator.kube import lease
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import LEASES
from dynamo.operator.kube.write_fence import awake_or_not

RELEASE_SECONDS = 3.0
"""A lease that can't be given back runs out by itself."""

log = logging.getLogger(__name__)


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
        period: float = lease.PERIOD,
    ) -> None:
        self._api, self._namespace, self._name, self._me = api, namespace, name, me
        self._clock, self._period = clock, period
        self._observation = lease.LeaseObservation()
        self._renewed: float | None = None
        self.term = 0
        """How often the lease has changed hands; 0 for the first leader of all, before whom nobody wrote."""

    def leads(self) -> bool:
        """Return whether we may act."""
        return lease.is_leading(self._renewed, self._clock())

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
            self._observation = lease.observed(current, self._observation, self._clock())
            if not lease.may_write(current, self._observation, self._me, self._clock()):
                self._renewed = None
                return False
            body = lease.claimed(
                current, me=self._me, wall=datetime.now(UTC), namespace=self._namespace, name=self._name
            )
            if current is None:
                await self._api.create(LEASES, self._namespace, body)
            else:
                await self._api.replace(LEASES, self._namespace, self._name, body)
        except ApiError as error:
            log.warning("could not renew the lease %s: %s", self._name, error)
            return False
        self._renewed, self.term = begun, lease.term(body)
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
            await self._api.replace(LEASES, self._namespace, self._name, lease.released(current))

    def _left(self) -> float:
        return max(0.0, (self._renewed or 0.0) + lease.DEADLINE - self._clock())
