"""A tenant fills etcd: requests go on, the operator makes room, and who couldn't register does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import aiohttp
import httpx
import pytest
from e2e.etcd.conftest import charts_container
from tests.fixtures_etcd import EtcdServer
from tests.operator.credentials import attacks
from tests.operator.credentials.attacks import Stage, b64

from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth

PIECE = "x" * 390_000
"""In base64 it is all that a request may be."""
ENOUGH = 400
"""More such writes than the quota of these tests holds."""
MEMORY_MB = 512
"""Half of what the chart lets etcd have."""


def one_key(stage: Stage, number: int) -> str:
    """Written again and again: it is the history that fills etcd."""
    return stage.own()


def many_keys(stage: Stage, number: int) -> str:
    """All of it stays, whatever happens to the history."""
    return f"{stage.own()}{number}"


def fill(stage: Stage, key: Callable[[Stage, int], str]) -> None:
    """Until etcd takes no more, from anybody."""
    for number in range(ENOUGH):
        put = stage.post("kv/put", {"key": b64(key(stage, number)), "value": b64(PIECE)}, "tenant")
        if put.status_code != 200:
            assert "space exceeded" in put.text
            return
    pytest.fail("etcd was never full")


def make_room(server: EtcdServer) -> str:
    """As the operator does at each look: it sees to sign-in first."""

    async def main() -> str:
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            auth = EtcdAuth(session, [server.url], EtcdAdmin("root", "secret"))
            assert not await auth.set_up("another epoch")
            return await auth.make_room()

    return asyncio.run(main())


def writes(stage: Stage) -> int:
    """The status that the victim gets for a write of its own."""
    return stage.post("kv/put", {"key": b64(stage.of_victim("late")), "value": b64("x")}, "victim").status_code


def commits(etcd: EtcdServer) -> int:
    """How often etcd has written its pages."""
    text = httpx.get(f"{etcd.health_url}/metrics", timeout=10).text
    return int(text.partition("\netcd_disk_backend_commit_duration_seconds_count ")[2].split()[0])


def committed(stage: Stage, etcd: EtcdServer) -> None:
    """Wait until etcd's pages hold what was written: a restart applies the rest anew, refusals and their alarm too."""
    before, deadline = commits(etcd), time.monotonic() + 30
    while commits(etcd) < before + 2:  # one may have begun before the write
        assert time.monotonic() < deadline, "etcd commits nothing"
        if writes(stage) != 200:  # on a busy machine the alarm of a refused write comes after room was made
            make_room(etcd)
        time.sleep(0.05)


def many_records(stage: Stage) -> None:
    """Write so many small keys of the victim's that reading them all takes etcd some milliseconds."""
    for first in range(0, 8000, 100):
        keys = [b64(stage.of_victim(f"many/{number}")) for number in range(first, first + 100)]
        puts = [{"request_put": {"key": key, "value": b64("x" * 100)}} for key in keys]
        stage.post("kv/txn", {"success": puts}, "victim").raise_for_status()


@contextmanager
def readers(stage: Stage, count: int) -> Iterator[None]:
    """Have the victim read its many keys all the time, over connections of its own."""
    over = threading.Event()
    everything = {"key": b64(stage.of_victim("many/")), "range_end": b64(stage.of_victim("many0")), "keys_only": True}

    def read() -> None:
        with httpx.Client(timeout=20) as client:
            while not over.is_set():
                replace(stage, client=client).post("kv/range", everything, "victim").raise_for_status()

    with ThreadPoolExecutor(count) as pool:
        reads = [pool.submit(read) for _ in range(count)]
        try:
            yield
        finally:
            over.set()
    for done in reads:
        done.result()


def test_readers_do_not_cost_the_registrations(stage: Stage, etcd: EtcdServer) -> None:
    """etcd doesn't count pages as free that a reader held at the last commit, and says so until the next one."""
    many_records(stage)
    for _ in range(3):
        fill(stage, one_key)
        with readers(stage, 4):
            assert "registrations" not in make_room(etcd)
        assert stage.seen() == attacks.RECORD


@pytest.mark.parametrize("key", [one_key, many_keys])
def test_a_full_etcd_has_room_again(stage: Stage, etcd: EtcdServer, key: Callable[[Stage, int], str]) -> None:
    """As often as the tenant does it. Meanwhile leases live on, and what is there can be read."""
    for _ in range(2):
        fill(stage, key)
        assert writes(stage) == 429
        assert stage.post("lease/keepalive", {"ID": stage.lease}, "victim").json()["result"]["TTL"] == "3600"
        assert stage.seen() == attacks.RECORD
        assert "etcd was full" in make_room(etcd)
        assert writes(stage) == 200
        if key is one_key:  # only what is worth dropping was
            assert stage.seen() == attacks.RECORD
        else:
            stage.register()
    assert make_room(etcd) == ""


@pytest.mark.full
def test_a_tenant_cannot_fill_its_memory(stage: Stage, etcd: EtcdServer) -> None:
    """The largest values, more of them than the memory's limit could hold: it keeps few, and none after a restart."""
    answer = stage.post("kv/put", {"key": b64(stage.own()), "value": b64("x" * 600_000)}, "tenant")
    assert "too large" in answer.text
    body = {"key": b64(stage.own()), "value": b64(PIECE)}
    most = 0
    for number in range(3000):
        if stage.post("kv/put", body, "tenant").status_code != 200:
            make_room(etcd)
        if number % 50 == 0:
            most = max(most, etcd.memory_mb())
    assert most < MEMORY_MB
    make_room(etcd)
    committed(stage, etcd)
    etcd.kill()
    etcd.start()
    etcd.wait()
    assert etcd.memory_mb() < MEMORY_MB


def test_kubernetes_leaves_a_full_etcd_alone(stage: Stage, etcd: EtcdServer) -> None:
    """By its probes it is alive and ready: else it would be restarted for ever, and out of the operator's reach."""
    fill(stage, one_key)
    container = charts_container()
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
    answers = {path: httpx.get(f"{etcd.health_url}{path}", timeout=10).status_code for path in probes}
    assert set(answers.values()) == {200}, answers
    assert httpx.get(f"{etcd.health_url}/health", timeout=10).status_code == 503


def test_rights_hold_while_it_is_full(stage: Stage) -> None:
    """On a 3.5 whoever filled it could delete everybody's keys then, and turn sign-in off."""
    fill(stage, one_key)
    tried = [one for one in (*attacks.SERVER, *attacks.ALARMS, *attacks.KEYS) if "watches" not in one.what]
    assert [one.name for one in tried if one.succeeds(stage)] == []
