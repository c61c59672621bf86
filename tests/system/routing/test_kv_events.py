"""KV events in whole deployments on a real etcd and NATS: indexes against caches, hits against round-robin's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.system.routing.kv_deployment import BLOCK, Deployment, run, until

from dynamo.runtime import EtcdConfig, NatsConfig, RuntimeConfig

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

Play = Callable[[Callable[[Deployment], Awaitable[None]]], None]


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS that the test may kill."""
    server = NatsServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def play(etcd_server: EtcdServer, nats: NatsServer) -> Play:
    config = RuntimeConfig(etcd=etcd_server.config(), nats=NatsConfig(servers=(nats.url,)))
    return lambda case: run(case, config)


def test_two_frontends_know_what_is_cached(play: Play) -> None:
    """After thousands of requests in caches far too small for them, without a single loss or second snapshot."""

    async def case(deployment: Deployment) -> None:
        for _ in range(3):
            await deployment.worker(blocks=64)
        fronts = [await deployment.frontend() for _ in range(2)]
        await deployment.load(4000, seed=1)
        await deployment.settle()
        held = [worker.engine.kv_names() for worker in deployment.workers]
        assert min(map(len, held)) > 48, "the caches are full, or nearly"
        for front in fronts:
            assert (front.count("model_kv_gaps_total"), front.count("model_kv_snapshots_total")) == (0, 3)
            assert front.count("model_kv_steps_total") > 1000
            await until("nothing counts that is over", lambda front=front: not len(front.router.activity))  # type: ignore[misc]

    play(case)


def test_ranks_are_followed_and_chosen_one_by_one(play: Play) -> None:
    """Two workers of three ranks, two frontends: indexes equal each rank's cache, and prompts go back to theirs."""

    async def case(deployment: Deployment) -> None:
        for _ in range(2):
            await deployment.worker(blocks=64, data_parallel_size=3)
        fronts = [await deployment.frontend() for _ in range(2)]
        await deployment.load(1500, seed=9)
        await deployment.settle()
        held = [worker.engine.kv_names(rank) for worker in deployment.workers for rank in range(3)]
        assert min(map(len, held)) > 48, "the caches of all ranks are full, or nearly"
        for front in fronts:
            assert front.count("model_kv_gaps_total") == 0
            await until("nothing counts that is over", lambda front=front: not len(front.router.activity))  # type: ignore[misc]
        late = await deployment.frontend()
        await until("the late one knows all ranks", lambda: deployment.agree(late))
        prompts = [[1000 + number] * 6 * BLOCK for number in range(6)]
        for front in (fronts[0], fronts[1], late):
            results = await asyncio.gather(*(front.ask(prompt) for prompt in prompts))
            assert results == [0 if front is fronts[0] else 6 * BLOCK - 1] * 6
            await deployment.settle()

    play(case)


def test_salted_prompts_go_back_to_their_own_blocks(play: Play) -> None:
    """Two workers of two ranks: a salt's prompts find what that salt has cached, on any frontend, and nothing else."""

    async def case(deployment: Deployment) -> None:
        for _ in range(2):
            await deployment.worker(blocks=256, data_parallel_size=2)
        first, second = [await deployment.frontend() for _ in range(2)]
        prompts = [[1000 + number] * 6 * BLOCK for number in range(4)]
        salts = (None, "mine", "yours")
        for salt in salts:
            assert [await first.ask(prompt, salt=salt) for prompt in prompts] == [0] * 4, "no other salt's blocks count"
        await deployment.settle()
        for salt in salts:
            for prompt in prompts:
                await until("nothing counts that is over", lambda: not len(second.router.activity))
                assert await second.ask(prompt, salt=salt) == 6 * BLOCK - 1, "it is routed to the rank that has it"
        assert await second.ask(prompts[0], salt="nobody's") == 0
        await deployment.settle()

    play(case)


def test_a_late_frontend_is_as_good_within_a_second(play: Play) -> None:
    """One that starts under load, and a worker that does."""

    async def case(deployment: Deployment) -> None:
        await deployment.worker()
        await deployment.frontend()
        await deployment.load(300, seed=2)
        late = await deployment.frontend()
        await until("the late one knows what is cached", lambda: deployment.agree(late), 1.0)
        await deployment.worker()
        for front in deployment.fronts:
            await until("the second worker is known", lambda front=front: front.instances == 2)  # type: ignore[misc]
        await deployment.load(300, seed=3)
        await deployment.settle()

    play(case)


def test_a_gap_is_closed_within_a_second(play: Play) -> None:
    """Messages that the worker could not send: in the middle, and the very last ones."""

    async def case(deployment: Deployment) -> None:
        worker, front = await deployment.worker(), await deployment.frontend()
        await deployment.load(50, seed=4)
        await deployment.settle()
        send, lost = worker.runtime.bus.publish, []

        def lose(subject: str, data: bytes, reply: str = "") -> None:
            if ".kv." in subject:
                lost.append(subject)
            else:
                send(subject, data, reply)

        for more in (50, 0):
            before = front.count("model_kv_gaps_total")
            lost.clear()
            worker.runtime.bus.publish = lose  # type: ignore[method-assign]
            await deployment.load(50, seed=5 + more)
            worker.runtime.bus.publish = send  # type: ignore[method-assign]
            assert lost
            await deployment.load(more, seed=6)
            await until("the gap is closed", lambda: deployment.agree(front), 1.0)
            assert front.count("model_kv_gaps_total") == before + 1

    play(case)


def test_a_restart_of_nats_is_made_good(play: Play, nats: NatsServer) -> None:
    """What was lost with it comes back with the reconnect."""

    async def case(deployment: Deployment) -> None:
        worker, front = await deployment.worker(), await deployment.frontend()
        await deployment.load(50, seed=7)
        await deployment.settle()
        nats.kill()
        await until("the bus is away", lambda: not worker.runtime.bus.connected)
        rank = worker.engine.ranks[0]
        scheduler = rank.scheduler
        sequence = scheduler.add(None, list(range(40)))  # type: ignore[arg-type]
        scheduler.plan()
        scheduler.remove(sequence)
        changes = scheduler.pool.take_changes()
        assert changes is not None
        assert rank.on_kv is not None
        rank.on_kv(changes)
        assert not deployment.agree(front)
        nats.start()
        await deployment.settle()
        await deployment.load(50, seed=8)
        await deployment.settle()

    play(case)


@pytest.mark.processes
def test_a_killed_worker_takes_its_blocks_along(stack: Any) -> None:
    """SIGKILL: its blocks go with its record; one that comes in its place starts from nothing."""
    config = RuntimeConfig(
        etcd=EtcdConfig(endpoints=(stack.env["ETCD_ENDPOINTS"],)), nats=NatsConfig(servers=(stack.env["NATS_SERVER"],))
    )
    flags = ("--kv-cache-block-size", str(BLOCK), "--engine-args", '{"speedup_ratio": 0}')
    process = stack.worker("worker", "mocker", *flags, ETCD_LEASE_TTL="2")
    instance = process.ready_line()["instance"]

    async def case(deployment: Deployment) -> None:
        front = await deployment.frontend()
        await until("the worker is followed", lambda: front.instances and front.count("model_kv_snapshots_total") == 1)
        await front.ask(list(range(10 * BLOCK)))
        await until("its blocks are known", lambda: len(front.holds(instance)) == 10)
        models = front.models
        process.kill()
        await until("its blocks are gone", lambda: not front.instances, 60)
        assert models.kv is not None
        assert list(models.kv.router.index.ranks) == []
        assert len(models.kv.router.activity) == 0
        process.restart()
        await until("it is served", lambda: front.instances, 60)
        await until("another one is followed", lambda: front.count("model_kv_snapshots_total") == 2)
        await front.ask(list(range(5 * BLOCK)))
        (worker,) = front.models.workers.values()
        assert worker.id != instance
        await until("its blocks are known", lambda: len(front.holds(worker.id)) == 5)

    run(case, config, namespace="test")


def test_shared_beginnings_go_where_they_are_cached(play: Play) -> None:
    """Five prompts, six times each, three workers: in kv mode each is computed once, in turn on every worker.

    A frontend that came later, and has sent nothing itself yet, finds all of them.
    """

    async def case(deployment: Deployment) -> None:
        for _ in range(3):
            await deployment.worker(blocks=1000)
        shared = 8 * BLOCK

        async def cached(mode: str, first: int) -> list[int]:
            front, answers = await deployment.frontend(mode), []
            if mode == "kv":
                await until("what is cached is known", lambda: deployment.agree(front))
            for number in range(30):
                group = first + number % 5
                prompt = [group * 100 + n for n in range(shared)]
                answers.append(await front.ask([*prompt, number], 1))
                if mode == "kv":
                    await until("it is known", lambda: deployment.agree(front))
            if mode != "kv":
                deployment.fronts.remove(front)
            return answers

        assert await cached("kv", 0) == [0] * 5 + [shared] * 25
        round_robin = await cached("round-robin", 100)
        assert sorted(round_robin) == [0] * 15 + [shared] * 15
        assert await cached("kv", 0) == [shared] * 30

    play(case)


def test_frontends_count_what_the_others_sent(play: Play) -> None:
    """Until it ends, also where it was sent before the other frontend came; so the second avoids the busy worker."""

    async def case(deployment: Deployment) -> None:
        workers = [await deployment.worker(blocks=1000, speedup=1.0) for _ in range(2)]
        first, second = await deployment.frontend(), await deployment.frontend()
        answers = [first.start(list(range(number, 400 + number)), 400) for number in range(2)]
        ids = [worker.id for worker in workers]
        await until("each has one", lambda: [second.load(i).requests for i in ids] == [1, 1])
        await until("their prefill is over", lambda: [second.load(i) for i in ids] == [(0, 100, 1)] * 2)
        answers[0].choice.cancel()
        await until("one is free", lambda: sorted(second.load(i).requests for i in ids) == [0, 1])
        late = await deployment.frontend()
        await until("a late one knows it", lambda: sorted(late.load(i).requests for i in ids) == [0, 1])
        (free,) = [i for i in ids if not late.load(i).requests]
        answer = late.start(list(range(1000, 1400)), 1)
        assert late.load(free).requests == 1
        await asyncio.wait_for(answer.done, 20)
        answers[1].choice.cancel()
        for front in deployment.fronts:
            await until("nothing counts that is over", lambda front=front: not len(front.router.activity))  # type: ignore[misc]

    play(case)


@pytest.mark.processes
def test_processes_follow_and_report(stack: Any) -> None:
    """A frontend process in kv mode: a mocker is followed, an echo is said once and counted; both answer."""
    stack.worker("mocker", "mocker", "--engine-args", '{"speedup_ratio": 0}')
    echo = stack.worker("echo", "echo_core")
    frontend = stack.frontend("--router-mode", "kv")
    frontend.wait_for(instances=2)
    for number in range(6):
        answer = httpx.post(
            f"{frontend.url}/v1/completions", timeout=20,
            json={"model": "m", "prompt": "x" * 200 + str(number), "max_tokens": 2},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
    metrics = httpx.get(f"{frontend.url}/metrics", timeout=20).text.splitlines()
    assert 'dynamo_frontend_router_instances_without_kv_events{model="m",reason="no_events"} 1.0' in metrics
    assert 'dynamo_frontend_model_kv_snapshots_total{model="m"} 1.0' in metrics
    said = [line for line in frontend.process.text().splitlines() if "publishes no KV events" in line]
    assert [f"{echo.ready_line()['instance']:014x}" in line for line in said] == [True]
