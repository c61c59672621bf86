"""Operators that end and are followed by others: `Reconcilers` in this process, `Processes` that are killed with -9.

Both serve one namespace each and end when its script has cut them off; the next one knows
nothing of the one before.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiohttp
from e2e.apiserver.client import Object, holding
from e2e.apiserver.lanes import Lane, Lanes
from e2e.apiserver.operators import CONFIG, HOME, Operator, Operators

from dynamo.operator.cluster.informer import Informer
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.pipeline_cache import PipelineCache
from dynamo.operator.controller import Controller
from dynamo.operator.kube.client import Api
from dynamo.operator.metrics import Metrics
from dynamo.operator.namespace_turns import Budget
from dynamo.operator.reconcile.reconciler import Reconciler
from dynamo.operator.settings import Settings

END_SECONDS = 30.0
NUDGE_SECONDS = 0.5
"""In place of kopf: each pipeline is reconciled so often."""
OFTEN: Object = {"intervals": {"sweepSeconds": 2, "resyncSeconds": 4}}
"""For whom nobody tells."""


class Lives:
    """Who served how many."""

    def __init__(self) -> None:
        self.crashes: Counter[str] = Counter()
        """By namespace."""
        self.reconciles: Counter[str] = Counter()
        self.stays_down = False
        """After a crash nobody follows, as long as this holds."""


@contextmanager
def reconcilers(lanes: Lanes, url: str, token: str) -> Iterator[Lives]:
    """A life after the other in each lane; all that a process has, but for kopf and the lease."""
    lives, ended = Lives(), threading.Event()

    async def all_of_them() -> None:
        tasks = [asyncio.create_task(_in_a_row(lane, lives, url, token)) for lane in lanes]
        await holding(lambda: ended.is_set() or any(task.done() for task in tasks))
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        failed = [one for one in found if isinstance(one, Exception)]
        if failed:
            raise failed[0]

    with _thread(lambda: asyncio.run(all_of_them()), ended):
        yield lives


@contextmanager
def processes(lanes: Lanes, url: str, operators: Operators) -> Iterator[Lives]:
    """A real operator after the other in each lane, killed with -9."""
    lives, ended = Lives(), threading.Event()

    def started(lane: Lane) -> Operator:
        config = OFTEN | {"namespaces": [lane.namespace]}
        return operators.through(url, f"{lane.namespace}-{lives.crashes[lane.namespace]}", config)

    def watched() -> None:
        running = {lane.namespace: started(lane) for lane in lanes}
        while not ended.wait(0.02):
            for lane in lanes:
                one = running[lane.namespace]
                if lane.script.is_cut and one.process.poll() is None:
                    one.kill()
                    lives.crashes[lane.namespace] += 1
                if lane.script.is_cut and not lives.stays_down:
                    lane.script.mend()
                    running[lane.namespace] = started(lane)

    with _thread(watched, ended):
        yield lives


@contextmanager
def _thread(what: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Runs beside the test; what it raised, the test raises at its end."""
    failed: list[BaseException] = []

    def main() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=main, name="lives", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_SECONDS)
    assert not thread.is_alive(), "the lives have not ended"
    if failed:
        raise failed[0]


async def _in_a_row(lane: Lane, lives: Lives, url: str, token: str) -> None:
    while True:
        life = asyncio.create_task(_life(lane, lives, url, token))
        await holding(lambda: lane.script.is_cut or life.done())  # noqa: B023
        if life.done():
            life.result()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        lives.crashes[lane.namespace] += 1
        await holding(lambda: not lives.stays_down)
        lane.script.mend()


async def _life(lane: Lane, lives: Lives, url: str, token: str) -> None:
    """Begins with nothing; until cancelled."""
    # The installation that `Operators.through` starts: statuses name it.
    settings = Settings.of(json.dumps(CONFIG | {"leaderElection": {"enabled": False}}), {"POD_NAMESPACE": HOME})
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        api = Api(session, url, budget=Budget(), credentials=lambda refused=False: headers)
        store = ObjectStore()
        reconciler = Reconciler(api, settings, store=store, cache=PipelineCache())
        controller = Controller(Metrics())
        informer = Informer(api, store, controller.mark, (lane.namespace,))
        async with asyncio.TaskGroup() as group:
            group.create_task(informer.run())
            await informer.settled()
            group.create_task(controller.run(reconciler))
            while True:
                controller.mark(lane.key, urgent=True)
                await asyncio.sleep(NUDGE_SECONDS)
                lives.reconciles[lane.namespace] += 1
