"""What becomes of a deployment when its etcd dies, freezes, forgets or is not there yet; real servers."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures_etcd import EtcdServer, free_ports
from tests.waiting import until

from dynamo.runtime import (
    CannotConnect,
    Client,
    DistributedRuntime,
    EtcdConfig,
    NatsConfig,
    RuntimeConfig,
    UnaryClient,
)
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.names import EndpointPath, instance_prefix

pytestmark = pytest.mark.servers

PATH = EndpointPath("faults", "backend", "generate")


class Site:
    """A frontend and two workers on an etcd that the test may harm."""

    def __init__(self, etcd: EtcdServer, nats_url: str, **more: Any) -> None:
        self.etcd = etcd
        self.config = RuntimeConfig(etcd=etcd.config(**more), nats=NatsConfig(servers=(nats_url,)))
        self._made: list[DistributedRuntime] = []

    async def runtime(self) -> DistributedRuntime:
        made = await DistributedRuntime.create(self.config)
        self._made.append(made)
        return made

    async def worker(self) -> DistributedRuntime:
        made = await self.runtime()
        await made.endpoint(PATH).start(lambda incoming: incoming.finish(made.id))
        return made

    async def client(self, workers: int) -> Client:
        made = await (await self.runtime()).endpoint(PATH).client()
        await until("all are known", lambda: len(made.instance_ids()) == workers)
        return made

    async def registered(self) -> list[str]:
        """The instance keys in etcd; empty while it can't be asked."""
        store = EtcdStore(self.config.etcd)
        try:
            return [entry.key for entry in (await store.read(instance_prefix(None))).entries]
        except CannotConnect:
            return []
        finally:
            await store.close()

    async def close(self) -> None:
        self.etcd.kill()
        self.etcd.start()
        self.etcd.wait()
        await asyncio.gather(*(runtime.shutdown(0) for runtime in self._made))


async def answered_by_all(client: Client, workers: int) -> None:
    """Every request is answered, and by all workers in turn."""
    ask = UnaryClient(client)
    assert len({await ask.complete(0) for _ in range(workers)}) == workers


def play(site: Site, case: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(90):
                await case(site)
        finally:
            await site.close()

    asyncio.run(main())


def test_killed_and_restarted_empty(own_etcd: EtcdServer, nats_server: Any) -> None:
    """etcd dies and comes back without data: no request fails, and all are registered again within 10 s."""

    async def case(site: Site) -> None:
        workers = [await site.worker(), await site.worker()]
        client = await site.client(2)
        site.etcd.kill()
        await answered_by_all(client, 2)
        site.etcd.start(empty=True)
        site.etcd.wait()

        async def back() -> bool:
            await answered_by_all(client, 2)
            return len(await site.registered()) == 2

        assert await until("instances are back", back, within=10) < 10
        assert client.instance_ids() == sorted(worker.id for worker in workers)
        late = await site.worker()
        await until("newcomers are seen in the new store", lambda: late.id in client.instance_ids())
        served = late.served[0]
        await until("and become ready", lambda: served.readiness().ready)

    play(Site(own_etcd, nats_server.url), case)


def test_lease_expires_while_etcd_is_dead(own_etcd: EtcdServer, nats_server: Any) -> None:
    """An outage longer than the lease, with the data kept: nobody is taken out of service."""

    async def case(site: Site) -> None:
        await site.worker()
        client = await site.client(1)
        site.etcd.kill()
        deadline = asyncio.get_running_loop().time() + 2 * site.config.etcd.lease_ttl
        while asyncio.get_running_loop().time() < deadline:
            await answered_by_all(client, 1)
            await asyncio.sleep(0.05)
        site.etcd.start()
        site.etcd.wait()
        await until("registered", lambda: site.registered())
        await answered_by_all(client, 1)

    play(Site(own_etcd, nats_server.url, lease_ttl=1.0), case)


def test_frozen(own_etcd: EtcdServer, nats_server: Any) -> None:
    """etcd stops answering without closing anything: requests go on; it thaws and newcomers are seen."""

    async def case(site: Site) -> None:
        worker = await site.worker()
        client = await site.client(1)
        site.etcd.freeze()
        await until("the outage is noticed", lambda: bool(worker.registry.store_away), within=15)
        await answered_by_all(client, 1)
        assert await worker.served[0].update(figures={"slots": 3}) is False
        site.etcd.thaw()
        await until("written late", lambda: client.instances()[0].figures == {"slots": 3}, within=15)
        await site.worker()
        await until("newcomer", lambda: len(client.instance_ids()) == 2)
        await answered_by_all(client, 2)

    play(Site(own_etcd, nats_server.url), case)


async def test_a_lease_is_renewed_on_another_stream(own_etcd: EtcdServer) -> None:
    """The stream of renewals breaks with etcd, and is given up where etcd is silent; the lease goes on."""
    store = EtcdStore(own_etcd.config())
    await store.connect()
    lease = await store.grant(60)

    async def renewed() -> bool:
        try:
            return await lease.keep_alive()
        except CannotConnect:
            return False

    assert await lease.keep_alive()
    own_etcd.kill()
    with pytest.raises(CannotConnect):
        await lease.keep_alive()
    own_etcd.start()
    own_etcd.wait()
    await until("it is renewed after the restart", renewed)
    own_etcd.freeze()
    with pytest.raises(CannotConnect, match="did not renew a lease in time"):
        await lease.keep_alive()
    own_etcd.thaw()
    await until("it is renewed after the silence", renewed)
    await store.close()


def test_compacted_while_a_client_was_away(own_etcd: EtcdServer, nats_server: Any) -> None:
    """History that a client missed is compacted away: it lists again and misses nothing."""

    async def case(site: Site) -> None:
        await site.worker()
        client = await site.client(1)
        site.etcd.kill()
        site.etcd.start()
        site.etcd.wait()
        worker = await site.worker()
        for turn in range(3):
            await worker.served[0].update(figures={"turn": turn})
        revision = worker.served[0]._registration.revision
        command = ["etcdctl", "--endpoints", site.etcd.url, "compact", str(revision + 1)]
        assert await asyncio.to_thread(subprocess.call, command, stdout=subprocess.DEVNULL) == 0
        await until("seen", lambda: worker.id in client.instance_ids())
        await until("its last figures", lambda: {"turn": 2} in [i.figures for i in client.instances()])

    play(Site(own_etcd, nats_server.url), case)


def test_not_there_at_the_start(own_etcd: EtcdServer, nats_server: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A process that starts before etcd waits, says for what and where, and goes on when it is there."""

    async def case(site: Site) -> None:
        site.etcd.kill()
        starting = asyncio.create_task(site.worker())
        await until("it says what it waits for", lambda: "waiting for etcd at" in caplog.text)
        assert site.etcd.url in caplog.text
        assert "ETCD_ENDPOINTS" in caplog.text
        assert not starting.done()
        site.etcd.start()
        await starting
        assert len(await site.registered()) == 1

    with caplog.at_level(logging.INFO, "dynamo"):
        play(Site(own_etcd, nats_server.url), case)


async def test_never_there(nats_server: Any) -> None:
    """The wait has a limit, and ends in one sentence that says what to do."""
    (port,) = free_ports(1)
    etcd = EtcdConfig(endpoints=(f"http://127.0.0.1:{port}",), start_limit=0.5)
    with pytest.raises(CannotConnect, match=r"etcd at http://127.0.0.1:\d+ did not answer .* set ETCD_ENDPOINTS"):
        await DistributedRuntime.create(RuntimeConfig(etcd, NatsConfig(servers=(nats_server.url,))))


WORKER = """
    import asyncio, sys
    from dynamo.runtime import DistributedRuntime

    async def main():
        runtime = await DistributedRuntime.create()
        await runtime.endpoint(sys.argv[1]).start(lambda incoming: incoming.finish(runtime.id))
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


def test_a_killed_worker_is_confirmed_gone(own_etcd: EtcdServer, nats_server: Any, tmp_path: Path) -> None:
    """kill -9 of a worker: its lease ends, nobody answers the ping, and it is gone; the other one stays."""
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    env = {**os.environ, "ETCD_ENDPOINTS": own_etcd.url, "NATS_SERVER": nats_server.url, "ETCD_LEASE_TTL": "2"}

    async def case(site: Site) -> None:
        other = await site.worker()
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), str(PATH), env=env, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"ready\n"
        client = await site.client(2)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await until("confirmed gone", lambda: client.instance_ids() == [other.id], within=10)
        await answered_by_all(client, 1)

    play(Site(own_etcd, nats_server.url), case)


def test_the_second_of_two_endpoints(own_etcd: EtcdServer, nats_server: Any) -> None:
    """With one of several endpoints dead, the next one is used, at the start and later."""
    (dead,) = free_ports(1)
    site = Site(own_etcd, nats_server.url)
    etcd = dataclasses.replace(site.config.etcd, endpoints=(f"http://127.0.0.1:{dead}", own_etcd.url))
    site.config = dataclasses.replace(site.config, etcd=etcd)

    async def case(site: Site) -> None:
        await site.worker()
        client = await site.client(1)
        site.etcd.kill()
        site.etcd.start()
        site.etcd.wait()
        await site.worker()
        await until("newcomer", lambda: len(client.instance_ids()) == 2)

    play(site, case)
