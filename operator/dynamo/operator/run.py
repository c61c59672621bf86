"""The operator as a whole: `operate(settings, login)` composes probes, election, watches, sweep and work.

Called by `main`. A replica that doesn't lead answers probes and waits; one that loses the
lease forgets all that it knew and waits for it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from dynamo.operator.answers import ApiError
from dynamo.operator.asking import Asking
from dynamo.operator.credentials.access import Access
from dynamo.operator.dirty import Dirty, Key, Pace
from dynamo.operator.election import Election
from dynamo.operator.kube import Api
from dynamo.operator.lag import Lag
from dynamo.operator.latest import Latest
from dynamo.operator.life import Relay
from dynamo.operator.login import Login
from dynamo.operator.metrics import Backlog, Metrics
from dynamo.operator.mirror import Mirror
from dynamo.operator.mirroring import Mirroring
from dynamo.operator.probes import Health, Probes
from dynamo.operator.reconcile import Reconciler
from dynamo.operator.settings import Settings
from dynamo.operator.watching import Handlers, watch
from dynamo.operator.work import Work, sweep

log = logging.getLogger(__name__)


PATIENCE_SECONDS = 45.0
"""A version that the last sweep but one has listed must have been told by now."""


async def operate(settings: Settings, login: Login, probes_at: tuple[str, int]) -> None:
    """Until cancelled; raises `LoginError`, `ProbesError`."""
    metrics, health = Metrics(), Health()
    reign = _Reign()
    api = login.api(metrics.requested, reign.may_write)
    probes = Probes(health, metrics.render, *probes_at)

    async def lead() -> None:
        await _Duties(api, login, settings, metrics, health).run()

    try:
        await probes.start()
        if settings.lease is None:
            return await lead()
        while True:
            election = Election(api, settings.own_namespace, settings.lease, settings.identity)
            reign.election = election
            await _term(election, health, lead, settings.intervals.sweep)
            log.warning("the lease %s could not be renewed, or another replica has it: waiting for it", settings.lease)
    finally:
        await probes.stop()
        await api.close()


class _Reign:
    """Whose writes count: a term's election, or everybody's where nobody is elected."""

    election: Election | None = None

    def may_write(self) -> bool:
        """Right now."""
        return self.election is None or self.election.leads()


async def _term(
    election: Election, health: Health, lead: Callable[[], Coroutine[Any, Any, None]], every: float
) -> None:
    """Waits for the lease, and leads as long as it is ours; what was under way then has been cut off."""
    try:
        await _beside(_pulse(health, every), election.lead())
        log.info("leading")
        await _beside(lead(), election.keep())
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


async def _pulse(health: Health, every: float) -> None:
    """Who waits for the lease is well."""
    while True:
        health.read()
        await asyncio.sleep(every)


class _Duties:
    """What only the leader does, and what it knows: another term begins with nothing."""

    def __init__(self, api: Api, login: Login, settings: Settings, metrics: Metrics, health: Health) -> None:
        self._api, self._login, self._where = api, login, settings.namespaces
        self._metrics, self._health = metrics, health
        mirror, self._latest, self._access = Mirror(), Latest(), Access(api, settings)
        self._asking = Asking(mirror, lambda key: self._work.mark(key, urgent=True)) if settings.ask_frontends else None
        looks = Reconciler(
            api, settings, access=self._access, mirror=mirror, latest=self._latest,
            missed=lambda *what: self._mirroring.missed(*what), asking=self._asking,
        )  # fmt: skip
        self._every, resync = settings.intervals.sweep, settings.intervals.resync
        self._work = Work(looks, metrics, queue=Dirty(Pace(resync=resync)))
        self._mirroring = Mirroring(api, mirror, self._work.mark, settings.namespaces, again=resync)
        marks = Relay(lambda key, urgent: self._work.mark(key, urgent=urgent))
        self._handlers = Handlers(marks, self._latest)
        self._lag, self._again = Lag(), asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self._health.oldest, self._health.silent = self._work.oldest, self._mirroring.silent
        self._health.late = lambda: max(self._late().values(), default=0.0)
        self._metrics.backlog, self._metrics.leading = self._work.backlog, True
        try:
            await self._all()
        finally:
            self._health.rest()
            self._metrics.backlog, self._metrics.leading = Backlog, False
            await self._access.close()

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._access.keep(lambda owner: self._work.mark(Key(*owner))), name="credentials")
            group.create_task(self._mirroring.run(), name="mirror")
            group.create_task(self._working(), name="work")
            group.create_task(self._sweeping(), name="sweep")
            if self._asking is not None:
                group.create_task(self._asking.run(), name="ask the frontends")
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
            await asyncio.sleep(self._every)

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
        self._latest.listed(found)
        self._lag.listed(found, self._handlers.heard(), time.monotonic())
        late = self._late()
        for key in late:
            self._work.mark(key)
        if max(late.values(), default=0.0) > PATIENCE_SECONDS:
            log.warning("the watch of pipelines hasn't told of %s; starting it again", min(late))
            self._again.set()

    def _late(self) -> dict[Key, float]:
        return self._lag.late(self._handlers.heard(), time.monotonic())
