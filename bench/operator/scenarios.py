"""What is measured: each scenario drives a fresh control plane and returns figures with their bars."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import NamedTuple

from bench.figures import percentile
from bench.operator import subject
from bench.operator.audit import delays, reads, requests, writes
from bench.operator.bare import Bare
from bench.operator.client import CHILDREN, NAMESPACES, Client, key_of, mocker, opened
from bench.operator.plane import CLIENT, OPERATOR, Plane
from bench.processes import BenchError, cpu_seconds

SETTLE_SECONDS = 5.0
"""After the last event, so that late writes are counted too; the audit log is written once a second."""


class Figure(NamedTuple):
    """A measured value, and the most that it may be."""

    name: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def missed(self) -> bool:
        """Beyond its bar."""
        return self.bar is not None and self.value > self.bar

    def __str__(self) -> str:
        bar = "" if self.bar is None else f"  (bar {self.bar:g}: {'MISSED' if self.missed else 'ok'})"
        return f"{self.name:<52}{self.value:>10.3f} {self.unit}{bar}"


@dataclass(frozen=True)
class Sizes:
    """How many pipelines."""

    paced: int = 500
    burst: int = 1000
    noisy: int = 150
    rate: float = 10.0

    @classmethod
    def scaled(cls, factor: float) -> Sizes:
        """Smaller runs, for trying things."""
        return cls(*(max(10, round(n * factor)) for n in (cls.paced, cls.burst, cls.noisy)))


async def floor(plane: Plane, sizes: Sizes) -> list[Figure]:
    """The same pace without an operator: what the API server and the machine allow at best."""
    plane.namespaces(NAMESPACES)
    numbers = range(sizes.paced)
    async with opened(plane, Bare) as client:
        await client.paced(numbers, sizes.rate)
        await asyncio.sleep(SETTLE_SECONDS)
    return [*_delays(plane, sizes.paced, user=CLIENT), *_plane_costs(plane, sizes.paced)]


async def paced(plane: Plane, sizes: Sizes) -> list[Figure]:
    """Pipelines at a steady pace: how soon their children are there, and what each costs."""
    operator = await _started(plane)
    numbers = range(sizes.paced)
    async with opened(plane) as client:
        await client.paced(numbers, sizes.rate)
        await client.until_ready([key_of(n) for n in numbers], 120)
        await asyncio.sleep(SETTLE_SECONDS)
        ready = sorted(client.ready[k] - client.begun[k] for k in client.begun)
    return [
        *_delays(plane, sizes.paced, 0.2, 0.8),
        Figure("apply to Ready, p50", percentile(ready, 50), "s"),
        Figure("apply to Ready, p99", percentile(ready, 99), "s"),
        *await _costs(plane, operator, sizes.paced),
    ]


async def burst(plane: Plane, sizes: Sizes) -> list[Figure]:
    """All pipelines at once; then the operator is killed and started over them; then each is touched once."""
    operator = await _started(plane)
    numbers = range(sizes.burst)
    keys = [key_of(n) for n in numbers]
    async with opened(plane) as client:
        begun = time.time()
        await client.at_once(numbers)
        submitted = time.time() - begun
        await client.until_ready(keys, 600)
        took = max(client.ready[k] for k in keys) - begun
        await asyncio.sleep(SETTLE_SECONDS)
        found = [
            Figure("submitted", submitted, "s"),
            Figure("all Ready", took, "s", 150),
            *_delays(plane, sizes.burst),
            *await _costs(plane, operator, sizes.burst, 150),
        ]
        return [*found, *await _restarted(plane, client, operator, sizes.burst)]


async def _restarted(plane: Plane, client: Client, operator: subject.Operator, number: int) -> list[Figure]:
    await asyncio.to_thread(plane.servers.stop, operator.role)
    since = time.time()
    again = subject.start(plane, "operator-again")
    took = await subject.until_reconciled(again, number, 180)
    await asyncio.sleep(SETTLE_SECONDS)
    restart = [
        Figure("cold restart until all are observed", took, "s", 30),
        Figure("writes of the restart", _written(plane, since), "writes", 0),
        Figure("reads of the restart", sum(reads(requests(plane.audit, since), OPERATOR).values()), "requests"),
        Figure("RSS after the restart", plane.rss(again.role), "MB", 150),
    ]
    return [*restart, *await _touched(plane, client, again, number)]


async def _touched(plane: Plane, client: Client, operator: subject.Operator, number: int) -> list[Figure]:
    """A reconcile that finds everything as it should be, as a resync does: annotations cause it for each pipeline."""
    since, before = time.time(), subject.reconciles(await operator.metrics())
    used = cpu_seconds(plane.servers.pids(operator.role))
    for n in range(number):
        namespace, body = mocker(n)
        path = f"/apis/dynamo.dev/v1alpha1/namespaces/{namespace}/dynamopipelines/{body['metadata']['name']}"
        touch = {"metadata": {"annotations": {"bench": str(since)}}}
        await client.send("PATCH", path, touch, "application/merge-patch+json")
    await subject.until_reconciled(operator, before + number, 120)
    await asyncio.sleep(SETTLE_SECONDS)
    spent = cpu_seconds(plane.servers.pids(operator.role)) - used
    return [
        Figure("mutating requests in a resync of all", _written(plane, since), "writes", 0),
        Figure("reads of the resync", sum(reads(requests(plane.audit, since), OPERATOR).values()), "requests"),
        Figure("CPU of the resync", 1000 * spent / number, "ms/reconcile"),
    ]


async def failover(plane: Plane, sizes: Sizes) -> list[Figure]:
    """Two replicas; the leader is killed and a pipeline applied at that moment: the other one makes its children."""
    first = await _started(plane, elected=True)
    await asyncio.sleep(SETTLE_SECONDS)
    subject.start(plane, "operator-two", elected=True)
    async with opened(plane) as client:
        await client.at_once(range(20))
        await client.until_ready([key_of(n) for n in range(20)], 60)
        await asyncio.to_thread(plane.servers.stop, first.role, kill=True)
        begun = time.time()
        await client.create(*mocker(20))
        await client.until_ready([key_of(20)], 120)
        await asyncio.sleep(SETTLE_SECONDS)
    came = delays(requests(plane.audit, begun), OPERATOR, CLIENT, CHILDREN)
    return [Figure("leader killed to children of a new pipeline", came[key_of(20)], "s", 20)]


async def noisy(plane: Plane, sizes: Sizes) -> list[Figure]:
    """The same pace in turn without and with a pipeline that can never succeed; what it changes for the others."""
    await _started(plane)
    found: dict[bool, list[float]] = {False: [], True: []}
    async with opened(plane) as client:
        for turn, prefix in enumerate(("warm", *(f"{c}" for c in "abcdefgh"))):
            wedged = turn % 2 == 0
            since = time.time()
            if wedged:
                await client.send("POST", NEVER_PATH, _never(prefix))
            numbers = range(sizes.noisy)
            await client.paced(numbers, sizes.rate, prefix)
            await client.until_ready([key_of(n, prefix) for n in numbers], 120)
            await asyncio.sleep(2)
            came = delays(requests(plane.audit, since), OPERATOR, CLIENT, CHILDREN)
            if prefix != "warm":
                found[wedged] += [s for k, s in came.items() if k.partition("/")[2].startswith(prefix)]
            if wedged:
                await client.send("DELETE", f"{NEVER_PATH}/never-{prefix}")
    without, with_it = (percentile(sorted(found[wedged]), 99) for wedged in (False, True))
    return [
        Figure("apply to children, p99, alone", without, "s"),
        Figure("apply to children, p99, beside one that never succeeds", with_it, "s"),
        Figure("change of p99", 100 * (with_it / without - 1), "%", 10),
    ]


NEVER_PATH = f"/apis/dynamo.dev/v1alpha1/namespaces/{NAMESPACES[0]}/dynamopipelines"


def _never(prefix: str) -> dict[str, object]:
    """What the API server refuses in a StatefulSet each time, while the other children are written."""
    _, body = mocker(0)
    container = {"name": "worker", "securityContext": {"runAsUser": -7}}
    component = {"engine": "mocker", "podTemplate": {"spec": {"containers": [container]}}}
    return {**body, "metadata": {"name": f"never-{prefix}"}, "spec": {"components": [component]}}


async def _started(plane: Plane, *, elected: bool = False) -> subject.Operator:
    """The namespaces and a replica that has looked around."""
    plane.namespaces(NAMESPACES)
    operator = subject.start(plane, elected=elected)
    await subject.until_reconciled(operator, 0, 60)
    await asyncio.sleep(2)
    operator.start_cpu = cpu_seconds(plane.servers.pids(operator.role))
    return operator


def _delays(
    plane: Plane, number: int, p50: float | None = None, p99: float | None = None, user: str = OPERATOR
) -> list[Figure]:
    came = sorted(delays(requests(plane.audit), user, CLIENT, CHILDREN).values())
    if len(came) != number:
        raise BenchError(f"{len(came)} of {number} pipelines have {CHILDREN} children in the audit log")
    return [
        Figure("apply to children created, p50", percentile(came, 50), "s", p50),
        Figure("apply to children created, p99", percentile(came, 99), "s", p99),
        Figure("apply to children created, longest", came[-1], "s"),
    ]


async def _costs(plane: Plane, operator: subject.Operator, number: int, memory: float | None = None) -> list[Figure]:
    """Writes, reads and reconciles per pipeline; CPU and memory of the operator."""
    asked = requests(plane.audit)
    written, metrics = writes(asked, OPERATOR), await operator.metrics()
    used = cpu_seconds(plane.servers.pids(operator.role)) - operator.start_cpu
    figures = [
        Figure("child writes per pipeline", written["children"] / number, "writes", 10),
        Figure("status writes per pipeline", written["status"] / number, "writes", 3),
        Figure("events per pipeline", written["events"] / number, "writes"),
        Figure("refused writes", written["refused"], "writes"),
        Figure("reads per pipeline", sum(reads(asked, OPERATOR).values()) / number, "requests"),
        Figure("reconciles per pipeline", subject.reconciles(metrics) / number, "reconciles"),
        Figure("CPU per pipeline", 1000 * used / number, "ms"),
    ]
    return [
        *figures,
        *_plane_costs(plane, number),
        Figure("RSS of the operator", plane.rss(operator.role), "MB", memory),
    ]


def _plane_costs(plane: Plane, number: int) -> list[Figure]:
    """Where the rest of the CPU goes; with what the processes need to start."""
    return [
        Figure(f"CPU per pipeline: {role}", 1000 * cpu_seconds(plane.servers.pids(role)) / number, "ms")
        for role in ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kwok")
    ]


def _written(plane: Plane, since: float) -> int:
    return sum(writes(requests(plane.audit, since), OPERATOR).values())
