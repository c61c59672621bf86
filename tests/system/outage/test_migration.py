"""Streams go on when their worker goes: counted, on real processes, etcd and NATS. Echoes show a byte that is off."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from tests.system.outage.traffic import Traffic, traffic
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]

STREAMS = 64
WORKERS = 4


def deployment(stack: Any, workers: int = WORKERS, *flags: str, limit: int = 3, delay_ms: int = 20) -> tuple[Any, Any]:
    """A frontend that migrates, and its workers."""
    made = [
        stack.worker(f"worker-{n}", "echo_core", *flags, DYN_TOKEN_ECHO_DELAY_MS=str(delay_ms)) for n in range(workers)
    ]
    frontend = stack.frontend("--migration-limit", str(limit))
    frontend.wait_for(instances=workers)
    return frontend, made


async def kill_in_mid_stream(clients: Traffic, victim: Any, streams: int = STREAMS, size: int = 200) -> None:
    """All of `streams` have begun when it goes; that it had some of them then, `migrated` tells."""
    await clients.begun(clients.begin(streams, size))
    await asyncio.to_thread(victim.kill)


def all_exact(clients: Traffic) -> None:
    wrong = [answer for answer in clients.answers if not answer.exact]
    assert not wrong, f"{len(wrong)} of {len(clients.answers)}: {wrong[:2]}"


async def test_a_killed_worker_is_not_noticed_by_clients(stack: Any) -> None:
    """SIGKILL of one of 4 under 64 streams: 64 exact texts with their own usage, one migration per stream it had.

    Afterwards nothing is sent to the dead one, which etcd still knows of.
    """
    frontend, workers = deployment(stack)
    dead = workers[0].ready_line()["instance"]

    async with traffic(frontend.url) as clients:
        await kill_in_mid_stream(clients, workers[0])
        await clients.ended()
        all_exact(clients)
        assert 1 <= await clients.migrated() <= STREAMS / WORKERS
        assert await clients.metric("model_migration_exhausted_total") == 0
        retried = await clients.migrated("new_request")
        assert dead not in [await clients.where() for _ in range(2 * WORKERS)]
        assert await clients.migrated("new_request") == retried, "no request was tried with the dead one"


async def test_the_same_without_etcd(stack: Any) -> None:
    """The store is away while the worker dies: requests and migrations don't need it."""
    frontend, workers = deployment(stack)

    async with traffic(frontend.url) as clients:
        await asyncio.to_thread(stack.etcd.kill)
        await kill_in_mid_stream(clients, workers[0])
        clients.begin(WORKERS)
        await clients.ended()
        all_exact(clients)
        assert await clients.migrated() >= 1


def migrated_by_a_leaver(frontend: Any, workers: list[Any], streams: int, later: int = 0) -> int:
    """Migrations while one worker is told to leave under `streams`, and `later` more come; all of them are exact."""

    async def run() -> int:
        async with traffic(frontend.url) as clients:
            await clients.begun(clients.begin(streams))
            workers[0].signal(signal.SIGTERM)
            clients.begin(later)
            await clients.ended()
            all_exact(clients)
            return int(await clients.migrated())

    found = asyncio.run(run())
    assert workers[0].popen.wait(20) == 0
    return found


def test_sigterm_needs_no_migration(stack: Any) -> None:
    """A worker that is told to leave finishes what it has; nothing is lost, moved or refused to a client."""
    frontend, workers = deployment(stack)
    assert migrated_by_a_leaver(frontend, workers, STREAMS, later=2 * WORKERS) == 0


def test_streams_that_outlive_the_grace_migrate(stack: Any) -> None:
    """A worker that may not finish hands its streams on at the end of its grace."""
    frontend, workers = deployment(stack, 2, "--graceful-shutdown-timeout-secs", "0.5")
    assert migrated_by_a_leaver(frontend, workers, 16) >= 1


async def test_twenty_kills_in_a_row(stack: Any) -> None:
    """One worker after the other is killed and started again under traffic: every stream is exact."""
    frontend, workers = deployment(stack, limit=20, delay_ms=10)

    async with traffic(frontend.url) as clients:
        clients.keep_up(16)
        for kill in range(20):
            # The next one goes when there are two others, and everybody has felt the last one.
            await until("there are others", lambda: frontend.instances() >= 3, 60)
            await clients.come_and_go(8)
            await asyncio.to_thread(workers[kill % WORKERS].restart)
        await clients.ended()
        all_exact(clients)
        assert await clients.migrated() >= 20


def test_a_worker_that_falls_silent(stack: Any) -> None:
    """SIGSTOP: alive for etcd and NATS, and dumb. Its streams go on elsewhere, it is not picked, and comes back."""
    frontend, workers = deployment(stack, 2, delay_ms=10)
    zombie = workers[0].ready_line()["instance"]

    async def run() -> None:
        async with traffic(frontend.url) as clients:
            await clients.begun(clients.begin(16))
            workers[0].signal(signal.SIGSTOP)
            await clients.ended()
            all_exact(clients)
            assert await clients.migrated() >= 1
            assert zombie not in [await clients.where() for _ in range(4)]
            workers[0].signal(signal.SIGCONT)
            await clients.until_it_goes_to(zombie)
            clients.begin(4, 40)
            await clients.ended()
            all_exact(clients)

    try:
        asyncio.run(run())
    finally:
        workers[0].signal(signal.SIGCONT)


async def test_the_limit_of_the_worker(stack: Any) -> None:
    """`dynamo-worker --migration-limit` says it for its model, where the frontend says nothing."""
    frontend, workers = deployment(stack, 2, "--migration-limit", "1", limit=0)

    async with traffic(frontend.url) as clients:
        await kill_in_mid_stream(clients, workers[0], 8, size=1000)
        await until("they went on", lambda: all(len(answer.text) > 60 for answer in clients.answers), 30)
        await asyncio.to_thread(workers[1].kill)
        await clients.ended()
        wrong = [answer for answer in clients.answers if not answer.clearly_failed]
        assert not wrong, wrong[:2]
        told = [answer for answer in clients.answers if "migration limit" in answer.error["message"]]
        assert len(told) == await clients.metric("model_migration_exhausted_total") >= 1
