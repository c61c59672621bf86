"""Composes the operator: `operate(settings, login)` runs probes, election, watches, sweep and controller.

Called by `main`. A replica that doesn't lead answers probes and waits; one that loses the
lease forgets all that it knew and waits for it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import Any

from dynamo.operator.cluster.informer import Informer
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.cluster.pipeline_watch import Handlers, Relay, WatchLag, watch
from dynamo.operator.controller import Controller, sweep
from dynamo.operator.credentials import etcd_peers
from dynamo.operator.credentials.pipeline_access import Access
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Election
from dynamo.operator.kube.login import Login
from dynamo.operator.kube.resources import Key
from dynamo.operator.metrics import Backlog, Metrics
from dynamo.operator.probes import Health, Probes
from dynamo.operator.reconcile.frontend_poller import FrontendPoller
from dynamo.operator.reconcile.reconciler import Reconciler
from dynamo.operator.settings import Settings
from dynamo.operator.workqueue import Backoff, WorkQueue

log = logging.getLogger(__name__)


PATIENCE_SECONDS = 45.0
"""Restart the watch of pipelines when a listed version hasn't been delivered for so long."""


async def operate(settings: Settings, login: Login, probes_at: tuple[str, int]) -> None:
    """Run the operator until cancelled; raises `LoginError`, `ProbesError`."""
    metrics, health = Metrics(), Health()
    leader_term = _LeaderTerm()
    api = login.api(metrics.requested, leader_term.may_write)
    probes = Probes(health, metrics.render, *probes_at)

    async def lead() -> None:
        await _Manager(
            api, login=login, settings=settings, metrics=metrics, health=health, term=leader_term.term()
        ).run()

    try:
        await probes.start()
        if settings.lease is None:
            return await lead()
        while True:
            election = Election(api, settings.own_namespace, settings.lease, settings.identity)
            leader_term.election = election
            await _serve_term(election, health, lead, settings.intervals.sweep)
            log.warning(
                "lost the lease %s: it could not be renewed, or another replica holds it; waiting for it",
                settings.lease,
            )
    finally:
        await probes.stop()
        await api.close()


class _LeaderTerm:
    """Decides whether this replica may write: by its election, or always where nobody is elected."""

    election: Election | None = None

    def may_write(self) -> bool:
        """Return whether a write may be sent right now."""
        return self.election is None or self.election.leads()

    def term(self) -> int:
        """Return the election's term; 0 where nobody is elected."""
        return self.election.term if self.election is not None else 0


async def _serve_term(
    election: Election, health: Health, lead: Callable[[], Coroutine[Any, Any, None]], every: float
) -> None:
    """Wait for the lease, and lead as long as it is ours; what is under way then is cut off."""
    try:
        await _run_until(_report_alive(health, every), election.lead())
        log.info("became the leader")
        await _run_until(lead(), election.keep())
    finally:
        await election.release()


async def _run_until(work: Coroutine[Any, Any, None], until: Coroutine[Any, Any, None]) -> None:
    """Run both; when either ends, end the other and raise what was raised."""
    tasks = [asyncio.create_task(work), asyncio.create_task(until)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report_alive(health: Health, every: float) -> None:
    """Report a replica that waits for the lease as healthy."""
    while True:
        health.read()
        await asyncio.sleep(every)


class _Manager:
    """Runs what only the leader runs, for one term: another term begins with nothing."""

    def __init__(self, api: Api, login: Login, settings: Settings, metrics: Metrics, health: Health, term: int) -> None:
        self._api, self._login, self._where = api, login, settings.namespaces
        self._metrics, self._health = metrics, health
        self._every, resync = settings.intervals.sweep, settings.intervals.resync
        store, self._cache, self._access = ObjectStore(), PipelineCache(), Access(api, settings)
        self._controller = controller = Controller(metrics, queue=WorkQueue(Backoff(resync=resync)))
        self._informer = Informer(api, store, controller.mark_owner, settings.namespaces, resync=resync)
        self._poller = FrontendPoller(store, controller.mark_urgent) if settings.frontend_probing else None
        self._reconciler = Reconciler(
            api,
            settings,
            access=self._access,
            store=store,
            cache=self._cache,
            expect_version=self._informer.expect_version,
            poller=self._poller,
            term=term,
        )
        marks = Relay(lambda key, urgent: controller.mark(key, urgent=urgent))
        self._handlers = Handlers(marks, self._cache)
        self._watch_lag, self._restart = WatchLag(), asyncio.Event()
        self._namespace, self._etcd_peers = settings.own_namespace, settings.etcd_peers

    async def run(self) -> None:
        """Run until cancelled."""
        self._health.oldest, self._health.silent = self._controller.oldest, self._informer.silent
        self._health.late = lambda: max(self._late().values(), default=0.0)
        self._metrics.backlog, self._metrics.leading = self._controller.backlog, True
        try:
            await self._all()
        finally:
            self._health.rest()
            self._metrics.backlog, self._metrics.leading = Backlog, False
            self._reconciler.close()
            await self._access.close()

    async def _all(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._access.keep(lambda owner: self._controller.mark(Key(*owner))), name="credentials")
            if self._etcd_peers is not None:
                group.create_task(etcd_peers.keep(self._api, self._namespace, self._etcd_peers), name="etcd's members")
            group.create_task(self._informer.run(), name="informer")
            group.create_task(self._working(), name="work")
            group.create_task(self._sweeping(), name="sweep")
            if self._poller is not None:
                group.create_task(self._poller.run(), name="ask the frontends")
            watching = watch(
                self._api,
                login=self._login,
                namespaces=self._where,
                handlers=self._handlers,
                metrics=self._metrics,
                after=self._sweep,
                restart=self._restart,
            )
            group.create_task(watching, name="watch")

    async def _working(self) -> None:
        await self._informer.settled()
        await self._controller.run(self._reconciler)

    async def _sweeping(self) -> None:
        while True:
            await self._sweep()
            await asyncio.sleep(self._every)

    async def _sweep(self) -> None:
        try:
            versions = await sweep(self._api, self._where, self._controller, self._metrics)
        except ApiError as error:
            log.warning("could not list pipelines: %s; trying again in %.0f s", error, self._every)
            if error.code in (403, 404):
                # An answer, too: nothing here can cure it.
                self._health.read()
            return
        self._health.read()
        self._cache.listed(versions)
        self._watch_lag.listed(versions, self._handlers.delivered(), time.monotonic())
        late = self._late()
        for key in late:
            self._controller.mark(key)
        longest = max(late.items(), key=itemgetter(1), default=(None, 0.0))
        if longest[1] > PATIENCE_SECONDS:
            log.warning("the watch of pipelines hasn't delivered %s for %.0f s; restarting it", *longest)
            self._restart.set()

    def _late(self) -> dict[Key, float]:
        return self._watch_lag.late(self._handlers.delivered(), time.monotonic())
