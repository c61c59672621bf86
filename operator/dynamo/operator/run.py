"""The operator as a whole: `operate(settings, login)` composes probes, election, watches, sweep and work.

Called by `main`. A replica that doesn't lead answers probes and waits; one that loses the
lease ends, and the kubelet starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from dynamo.operator.answers import ApiError
from dynamo.operator.credentials.access import Access
from dynamo.operator.dirty import Key
from dynamo.operator.election import Election
from dynamo.operator.kube import Api
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
        await _elected(
            api, settings, metrics, health, _duties(api, login, settings, work, metrics, health, mirror, access)
        )
    finally:
        await probes.stop()
        await access.close()
        await api.close()


async def _elected(
    api: Api, settings: Settings, metrics: Metrics, health: Health, duties: Coroutine[Any, Any, None]
) -> None:
    if settings.lease is None:
        metrics.leading = True
        await duties
        return
    election = Election(api, settings.own_namespace, settings.lease, settings.identity)
    try:
        await _beside(_pulse(health), election.lead())
        log.info("leading")
        metrics.leading = True
        await _beside(duties, election.keep())
        raise LeaseLostError(
            f"the lease {settings.lease} could not be renewed in time, or another replica has it: ending, to begin anew"
        )
    finally:
        duties.close()
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


async def _duties(
    api: Api,
    login: Login,
    settings: Settings,
    work: Work,
    metrics: Metrics,
    health: Health,
    mirror: Mirror,
    access: Access,
) -> None:
    mirroring = Mirroring(api, mirror, work.mark, settings.namespaces)
    handlers = Handlers(Relay(lambda key, urgent: work.mark(key, urgent=urgent)))

    async def swept() -> None:
        try:
            await sweep(api, settings.namespaces, work, metrics)
            health.read()
        except ApiError as error:
            log.warning("the pipelines could not be listed: %s", error)

    async def sweeping() -> None:
        while True:
            await swept()
            await asyncio.sleep(SWEEP_SECONDS)

    async def working() -> None:
        await mirroring.settled()
        await work.run()

    async with asyncio.TaskGroup() as group:
        group.create_task(access.keep(lambda owner: work.mark(Key(*owner))), name="credentials")
        group.create_task(mirroring.run(), name="mirror")
        group.create_task(working(), name="work")
        group.create_task(sweeping(), name="sweep")
        group.create_task(watch(api, login, settings.namespaces, handlers, metrics, swept), name="watch")
