"""The operator as a whole: `operate(settings, login)` composes probes, election, watches, sweep and work.

Called by `main`. A replica that doesn't lead answers probes and waits; one that loses the
lease ends, and the kubelet starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from dynamo.operator.answers import ApiError
from dynamo.operator.credentials.access import Access
from dynamo.operator.dirty import Key
from dynamo.operator.election import Election
from dynamo.operator.kube import Api
from dynamo.operator.lag import Lag
from dynamo.operator.life import Relay
from dynamo.operator.login import Login
from dynamo.operator.metrics import Metrics
from dynamo.operator.mirror import Mirror
from dynamo.operator.mirroring import Mirroring
from dynamo.operator.probes import Health, Probes
from dynamo.operator.reconcile import Reconciler
from dynamo.operator.settings import Settings
from dynamo.operator.watching import Handlers, watch
from dynamo.operator.work import SWEEP_SECONDS, Work, sweep

log = logging.getLogger(__name__)


PATIENCE_SECONDS = 45.0
"""A version that the last sweep but one has listed must have been told by now."""


class LeaseLostError(Exception):
    """Another replica leads, or we couldn't say in time that we do."""


async def operate(settings: Settings, login: Login, probes_at: tuple[str, int]) -> None:
    """Until cancelled; raises `LeaseLostError`, `LoginError`, `ProbesError`."""
    metrics, health = Metrics(), Health()
    api = login.api(metrics.requested)
    mirror = Mirror()
    access = Access(api, settings)
    work = Work(Reconciler(api, settings, access=access, mirror=mirror), metrics)
    health.oldest = work.oldest
    probes = Probes(health, work.report, *probes_at)
    try:
        await probes.start()

        async def duties() -> None:
            await _Duties(api, login, settings, metrics, health, work, mirror).run(access)

        await _elected(api, settings, metrics, health, duties)
    finally:
        await probes.stop()
        await access.close()
        await api.close()


async def _elected(
    api: Api, settings: Settings, metrics: Metrics, health: Health, duties: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    if settings.lease is None:
        metrics.leading = True
        await duties()
        return
    election = Election(api, settings.own_namespace, settings.lease, settings.identity)
    try:
        await _beside(_pulse(health), election.lead())
        log.info("leading")
        metrics.leading = True
        await _beside(duties(), election.keep())
        raise LeaseLostError(
            f"the lease {settings.lease} could not be renewed in time, or another replica has it: ending, to begin anew"
        )
    finally:
        await election.release()


async def _beside(duties: Coroutine[Any, Any, None], until: Coroutine[Any, Any, None]) -> None:
    """Runs both; ends what is left when one ends, and raises what one raised."""
    tasks = [asyncio.create_task(duties), asyncio.create_task(until)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pulse(health: Health) -> None:
    """Who waits for the lease is well."""
    while True:
        health.read()
        await asyncio.sleep(SWEEP_SECONDS)


class _Duties:
    """What only the leader does."""

    def __init__(
        self, api: Api, login: Login, settings: Settings, metrics: Metrics, health: Health, work: Work, mirror: Mirror
    ) -> None:
        self._api, self._login, self._where, self._metrics = api, login, settings.namespaces, metrics
        self._health, self._work = health, work
        self._mirroring = Mirroring(api, mirror, work.mark, settings.namespaces)
        self._handlers = Handlers(Relay(lambda key, urgent: work.mark(key, urgent=urgent)))
        self._lag, self._again = Lag(), asyncio.Event()
        health.silent = self._mirroring.silent
        health.late = lambda: max(self._late().values(), default=0.0)

    async def run(self, access: Access) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(access.keep(lambda owner: self._work.mark(Key(*owner))), name="credentials")
            group.create_task(self._mirroring.run(), name="mirror")
            group.create_task(self._working(), name="work")
            group.create_task(self._sweeping(), name="sweep")
            watching = watch(
                self._api, self._login, self._where, self._handlers, self._metrics, self._sweep, self._again
            )
            group.create_task(watching, name="watch")

    async def _working(self) -> None:
        await self._mirroring.settled()
        await self._work.run()

    async def _sweeping(self) -> None:
        while True:
            await self._sweep()
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep(self) -> None:
        try:
            found = await sweep(self._api, self._where, self._work, self._metrics)
        except ApiError as error:
            log.warning("the pipelines could not be listed: %s", error)
            if error.code in (403, 404):
                # An answer, too: nothing here can cure it.
                self._health.read()
            return
        self._health.read()
        self._lag.listed(found, self._handlers.heard(), time.monotonic())
        late = self._late()
        for key in late:
            self._work.mark(key)
        if max(late.values(), default=0.0) > PATIENCE_SECONDS:
            log.warning("the watch of pipelines hasn't told of %s; starting it again", min(late))
            self._again.set()

    def _late(self) -> dict[Key, float]:
        return self._lag.late(self._handlers.heard(), time.monotonic())
