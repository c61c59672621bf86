"""What workers remark of themselves: who is asked, what is shown of the answers, and that their pipeline is marked."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web
from tests.operator.reconcile.test_frontend_poller import KEY, mirrored, pod
from tests.waiting import until

from dynamo.operator.kube.resources import Key
from dynamo.operator.reconcile import frontend_poller as module
from dynamo.operator.reconcile.frontend_poller import FrontendPoller
from dynamo.operator.reconcile.worker_remarks import (
    AT_MOST,
    REMARK_CHARACTERS,
    WorkerHealth,
    pods_to_ask,
    remark_of,
)


def worker(name: str, *, ready: bool = False, started: bool = True, component: str = "worker") -> dict[str, Any]:
    made = pod(name, component, ready=ready)
    made["status"]["containerStatuses"] = [{"name": "worker", "started": started}]
    return made


def names(pods: list[dict[str, Any]], remarking: frozenset[str] = frozenset(), turn: int = 0) -> list[str]:
    return [name for name, _ in pods_to_ask(pods, remarking, turn)]


def test_those_are_asked_that_arent_ready_and_answer() -> None:
    """Not one that starts, ends, has no address, or is ready in a component that remarks nothing."""
    leaving, homeless = worker("w-3"), worker("w-4")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    del homeless["status"]["podIP"]
    pods = [worker("w-1"), worker("w-0"), worker("w-2", started=False), leaving, homeless, worker("w-5", ready=True)]
    assert names(pods) == ["w-0", "w-1"]
    assert names(pods, frozenset({"worker"})) == ["w-0", "w-1", "w-5"]


def test_few_are_asked_at_a_time_and_all_in_turns() -> None:
    pods = [worker(f"w-{number}", ready=True) for number in range(2 * AT_MOST + 1)]
    turns = [names(pods, frozenset({"worker"}), turn) for turn in range(3)]
    assert {len(turn) for turn in turns} == {AT_MOST}
    assert {name for turn in turns for name in turn} == {f"w-{number}" for number in range(2 * AT_MOST + 1)}


@pytest.mark.parametrize(
    ("health", "shown"),
    [
        (WorkerHealth(("no endpoint is served yet",)), ""),
        (WorkerHealth(("waits for http://a, which answers 503", "no endpoint is served yet")), "waits for http://a"),
        (WorkerHealth((), ("lies",)), "lies"),
        (WorkerHealth(("a\x1b[31m\nb",)), "a\\x1b[31m\\nb"),
    ],
)
def test_what_is_shown(health: WorkerHealth, shown: str) -> None:
    """What a terminal should not get is escaped; what everybody says that starts is no remark."""
    assert remark_of(health).startswith(shown)
    assert bool(remark_of(health)) == bool(shown)


def test_a_remark_is_short() -> None:
    assert len(remark_of(WorkerHealth(("x" * 10_000,) * 9))) <= REMARK_CHARACTERS


async def test_a_pipeline_is_marked_when_its_worker_remarks_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real HTTP: an answer of 503 is read, garbage and endless ones say nothing, and the same words are no news."""
    words = ["waits for http://127.0.0.1:8000, which answers 503"]
    text, asked = [""], [0]

    async def health(_: web.Request) -> web.Response:
        asked[0] += 1
        return web.Response(text=text[0]) if text[0] else web.json_response({"reasons": words}, status=503)

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(module, "SYSTEM_PORT", runner.addresses[0][1])
    marks: list[Key] = []
    poller = FrontendPoller(mirrored(worker("w-0")), marks.append, clock=lambda: time.monotonic() * 1000, every=0.01)
    poller.expect(KEY, 1)
    task = asyncio.create_task(poller.run())
    try:
        await until("it is known", lambda: poller.remarks(KEY) == {"w-0": words[0]})
        often = asked[0] + 2
        await until("it was asked again", lambda: asked[0] > often)
        assert marks == [KEY]
        for garbage in ("<html>", '{"reasons": 7}', " " * (module.WORKER_BYTES + 1)):
            text[0] = garbage
            await until("nothing is known", lambda: not poller.remarks(KEY))
            text[0] = ""
            await until("it is known again", lambda: poller.remarks(KEY))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await runner.cleanup()
