"""etcd and NATS go away under traffic with migration: what the design's failure table promises of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.system.outage.traffic import Answer, Traffic, traffic
from tests.waiting import until

from dynamo.runtime.transport.nats import HURRY

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(180)]


Act = Callable[[Any], None]
"""Does something to a process."""
LONGEST_GAP = 6.0
"""Seconds, on a machine that does much else; a quiet one needs a third of it."""


def deployment(stack: Any, delay_ms: int = 20) -> tuple[Any, list[Any]]:
    """Two workers and a frontend that migrates."""
    workers = [stack.worker(f"worker-{n}", DYN_TOKEN_ECHO_DELAY_MS=str(delay_ms)) for n in range(2)]
    frontend = stack.frontend("--migration-limit", "3")
    frontend.wait_for(instances=2)
    return frontend, workers


def neither(answers: list[Answer]) -> list[Answer]:
    """Those that are neither whole nor ended in one clear error."""
    return [answer for answer in answers if not (answer.exact or answer.clearly_failed)]


async def all_well(clients: Traffic) -> None:
    """From some moment on everything is answered."""

    async def one() -> bool:
        (answer,) = clients.begin(1, 20)
        await until("it is answered", lambda: answer.over or answer.error, 30)
        return answer.exact

    async with asyncio.timeout(30):
        while not await one():
            pass
    last = clients.begin(8, 40)
    await clients.ended()
    assert all(answer.exact for answer in last), last


async def test_each_node_of_etcd_dies_in_turn(stack: Any) -> None:
    """Three nodes, each killed and started again: no request fails, and workers that come meanwhile are found."""
    nodes = stack.use_etcd_cluster()
    frontend, workers = deployment(stack, delay_ms=5)

    async with traffic(frontend.url) as clients:
        clients.keep_up(4)
        for number, node in enumerate(nodes):
            await asyncio.to_thread(node.kill)
            newcomer = stack.worker(f"newcomer-{number}", DYN_TOKEN_ECHO_DELAY_MS="5")
            ready = await asyncio.to_thread(newcomer.ready_line)
            await clients.until_it_goes_to(ready["instance"])
            await asyncio.to_thread(workers.pop(0).signal, signal.SIGTERM)
            workers.append(newcomer)
            node.restart()
            await asyncio.to_thread(stack.wait_for_node, number)
        answers = await clients.ended()
        assert len(answers) >= 4
        wrong = [answer for answer in answers if not answer.exact]
        assert not wrong, f"{len(wrong)} of {len(answers)}: {wrong[:2]}"


async def test_each_server_of_nats_dies_in_turn(stack: Any) -> None:
    """Three servers with routes, each killed under 20 streams and started again: all are whole, and none waits long."""
    gaps = await _taken_in_turn(stack, lambda server: server.kill(), lambda server: server.restart(), away=20)
    assert gaps[-1] < LONGEST_GAP, gaps[-5:]


async def test_each_server_of_nats_falls_silent_in_turn(stack: Any) -> None:
    """As on a lost node: it refuses nobody and answers nothing. Its clients ask the others; all streams are whole."""
    gaps = await _taken_in_turn(
        stack, lambda server: server.signal(signal.SIGSTOP), lambda server: server.signal(signal.SIGCONT), away=60
    )
    assert gaps[-1] < LONGEST_GAP + 2 * HURRY, gaps[-5:]


async def _taken_in_turn(
    stack: Any, take: Callable[[Any], None], give: Callable[[Any], None], away: int
) -> list[float]:
    """Take each of three servers from its clients for `away` streams; return the longest gap of each, sorted."""
    servers = stack.use_nats_cluster()
    frontend, _ = deployment(stack, delay_ms=20)

    async with traffic(frontend.url) as clients:
        clients.keep_up(20)
        for server in servers:
            await clients.come_and_go(20)
            await asyncio.to_thread(take, server)
            await clients.come_and_go(away)
            give(server)
        answers = await clients.ended()
        wrong = [answer for answer in answers if not answer.exact]
        assert not wrong, f"{len(wrong)} of {len(answers)}: {wrong[:2]}"
        return sorted(answer.gap for answer in answers)


async def test_a_restart_of_nats_under_64_streams(stack: Any) -> None:
    """Each goes on to its end or ends in one clear error, none hangs; afterwards all is well."""
    frontend, _ = deployment(stack)

    async with traffic(frontend.url) as clients:
        running = clients.begin(64, 160, x_request_timeout_ms="30000")
        await clients.begun(running)
        await asyncio.to_thread(stack.nats.restart)
        clients.begin(16, 40, x_request_timeout_ms="30000")
        answers = await clients.ended(50)
        assert not neither(answers), neither(answers)[:2]
        assert any(answer.exact for answer in answers)
        await all_well(clients)


async def test_no_request_outlives_its_deadline_while_nats_is_away(stack: Any) -> None:
    """Neither those under way nor new ones: each is told so, and what comes after NATS' return is served."""
    frontend, _ = deployment(stack)

    async with traffic(frontend.url) as clients:
        await clients.begun(clients.begin(8, 1500, x_request_timeout_ms="4000"))
        await asyncio.to_thread(stack.nats.kill)
        clients.begin(8, 40, x_request_timeout_ms="1000")
        answers = await clients.ended(20)
        assert all(answer.clearly_failed for answer in answers), answers
        assert {answer.error["code"] for answer in answers} == {"deadline"}
        assert {answer.status for answer in answers} == {200, 504}
        stack.nats.restart()
        await all_well(clients)
