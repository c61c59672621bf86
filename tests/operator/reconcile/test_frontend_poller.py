"""Frontends that are asked over real HTTP, and what a pipeline's status says therefore."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from tests.waiting import until

from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.kube.resources import PODS, Key
from dynamo.operator.manifests import naming
from dynamo.operator.reconcile import frontend_poller as module
from dynamo.operator.reconcile.frontend_poller import FrontendPoller

KEY = Key("serving", "llama")


def pod(name: str, component: str, version: int = 1, ready: bool = True) -> dict[str, Any]:
    labels = {naming.PIPELINE: KEY.name, naming.COMPONENT: component}
    metadata = {"namespace": KEY.namespace, "name": name, "resourceVersion": str(version), "labels": labels}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "status": {"podIP": "127.0.0.1", "conditions": conditions}}


def mirrored(*pods: dict[str, Any]) -> ObjectStore:
    store = ObjectStore()
    store.live(PODS, None, True)
    for pod in pods:
        store.take(PODS, pod)
    return store


class Frontend:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.reached = ["w-0", "w-1"]
        self.status, self.text, self.asked = 200, "", 0

    async def health(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.text:
            return web.Response(text=self.text)
        body = {"status": "healthy", "instances": [{"host": name, "routable": True} for name in self.reached]}
        return web.json_response(body, status=self.status)


@asynccontextmanager
async def asked(store: ObjectStore, marks: list[Key]) -> AsyncIterator[tuple[Frontend, FrontendPoller]]:
    frontend, app = Frontend(), web.Application()
    app.router.add_get("/health", frontend.health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    poller = FrontendPoller(
        store, marks.append, clock=lambda: time.monotonic() * 1000, every=0.01
    )  # pauses pass at once
    poller.expect(KEY, runner.addresses[0][1])
    task = asyncio.create_task(poller.run())
    try:
        yield frontend, poller
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await runner.cleanup()


PODS_OF = (pod("f", naming.FRONTEND), pod("w-0", "worker"), pod("w-1", "worker"))


async def test_a_worker_that_frontends_lose_marks_its_pipeline_and_so_does_its_return() -> None:
    marks: list[Key] = []
    async with asked(mirrored(*PODS_OF), marks) as (frontend, poller):
        await until("it was asked", lambda: frontend.asked > 2)
        assert (poller.lost(KEY), marks) == (frozenset(), [])
        frontend.reached = ["w-0"]
        await until("it is known", lambda: poller.lost(KEY) == {"w-1"})
        assert marks == [KEY]
        frontend.reached = ["w-0", "w-1"]
        await until("it is back", lambda: not poller.lost(KEY))
        assert marks == [KEY, KEY]


async def test_answers_that_cant_be_used_say_nothing() -> None:
    """One that leaves (503), one of somebody else's making, one without end."""
    marks: list[Key] = []
    async with asked(mirrored(*PODS_OF), marks) as (frontend, poller):
        await until("it was asked", lambda: frontend.asked > 1)
        endless = " " * (module.ANSWER_BYTES + 1)
        for status, text in ((503, ""), (200, "<html>"), (200, '{"instances": 7}'), (200, endless)):
            frontend.status, frontend.text, frontend.reached = status, text, []
            often = frontend.asked + 2
            await until("it was asked again", lambda: frontend.asked > often)  # noqa: B023 - waited for at once
        assert (poller.lost(KEY), marks) == (frozenset(), [])


async def test_silent_frontends_are_asked_less_and_less() -> None:
    """Nobody listens: each silence doubles the pause, and a pipeline that is gone isn't asked at all."""
    now = 100.0
    poller = FrontendPoller(mirrored(*PODS_OF), lambda key: None, clock=lambda: now, every=0.001)
    poller.expect(KEY, 1)
    task = asyncio.create_task(poller.run())
    try:
        known = poller._polls[KEY]
        await until("it failed", lambda: known.failures == 1)
        assert known.not_before == now + 2
        now += 2
        await until("it failed again", lambda: known.failures == 2)
        assert known.not_before == now + 4
        known.failures = 5_000  # two days of it
        now += 4
        await until("it failed once more", lambda: known.failures == 5_001)
        assert known.not_before == now + 30
        poller.gone(KEY)
        assert poller.lost(KEY) == frozenset()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
