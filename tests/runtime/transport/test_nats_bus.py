"""What only a real NATS server can show: outages, slow readers, killed workers, credentials, the wire itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest
import trustme

from dynamo.runtime.config import NatsConfig
from dynamo.runtime.context import Context
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.request_plane.caller import Verdict
from dynamo.runtime.request_plane.server import from_generator
from dynamo.runtime.transport.bus import Message
from dynamo.runtime.transport.nats import NatsBus

pytestmark = pytest.mark.servers


def start(caller: Any, instance: InstanceKey, payload: Any, reader: Any, context: Context | None = None) -> Any:
    sink = reader()
    context = context or Context()
    return sink, caller.open(instance, payload, context=context, on_item=sink.on_item, on_end=sink.on_end)


async def count(request: int) -> AsyncIterator[int]:
    for number in range(request):
        yield number
        await asyncio.sleep(0)


async def slowly(request: Any) -> AsyncIterator[int]:
    for number in range(10**6):
        yield number
        await asyncio.sleep(0.005)


async def test_a_killed_server_is_survived(start_nats: Any, over: Any, reader: Any, until: Any) -> None:
    """NATS killed and started again: open streams end cleanly, requests made meanwhile and later succeed."""
    server = start_nats()
    world = over(server)
    worker, instance = await world.worker(from_generator(slowly))
    _, quick = await world.worker(from_generator(count))
    caller = await world.caller()
    states: list[bool] = []
    world.buses[-1].on_state(states.append)
    sinks = [start(caller, instance, None, reader)[0] for _ in range(20)]
    await asyncio.gather(*(asyncio.wait_for(sink.begun.wait(), 10) for sink in sinks))
    server.kill()
    await until("the loss is known", lambda: states == [False])
    with pytest.raises(CannotConnect):
        world.buses[-1].publish("a", b"x")
    held, _ = start(caller, quick, 7, reader)
    server.start()
    for sink in sinks:
        error = await sink.end(20)
        assert error.retryable
        assert sink.items == list(range(len(sink.items)))
    assert (await held.end(20), held.items) == (None, list(range(7)))
    later, _ = start(caller, quick, 7, reader)
    assert (await later.end(), later.items) == (None, list(range(7)))
    await until("the worker is free", lambda: worker.active == 0)
    assert states == [False, True]
    await world.close()


WORKER = """
import asyncio, sys
from dynamo.runtime.transport.nats import NatsBus
from dynamo.runtime.config import NatsConfig
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.request_plane.server import RequestServer, from_generator

async def main():
    async def numbers(request):
        for number in range(10**6):
            yield number
            await asyncio.sleep(0.01)
    bus = NatsBus(NatsConfig(servers=(sys.argv[1],)))
    await bus.connect()
    server = RequestServer(bus, int(sys.argv[3]))
    await server.serve(EndpointPath.parse(sys.argv[2]), from_generator(numbers))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def worker_process(url: str, path: EndpointPath, identity: int) -> Any:
    argv = [sys.executable, "-c", WORKER, url, str(path), str(identity)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.processes
async def test_a_killed_worker_is_known_within_two_seconds(
    nats_server: Any, over: Any, reader: Any, until: Any
) -> None:
    """kill -9 in mid-stream: one retryable error per stream, others notice nothing."""
    world = over(nats_server)
    _, survivor = await world.worker(from_generator(slowly))
    caller = await world.caller()
    verdicts: list[Any] = []
    caller.on_verdict(lambda key, verdict: verdicts.append((key, verdict)))
    dying = InstanceKey(EndpointPath(world.namespace, "other", "generate"), 77)
    with worker_process(nats_server.url, dying.path, dying.id) as process:
        sinks = [start(caller, dying, None, reader)[0] for _ in range(20)]
        fine, call = start(caller, survivor, None, reader)
        for sink in [*sinks, fine]:
            await asyncio.wait_for(sink.begun.wait(), 10)
        begin = time.monotonic()
        process.send_signal(signal.SIGKILL)
        for sink in sinks:
            error = await sink.end()
            assert (error.code, error.retryable) == ("worker_lost", True)
            assert sink.items == list(range(len(sink.items)))
            assert sink.ended_at - begin < 2
    assert verdicts == [(dying, Verdict.DEAD)]
    seen = len(fine.items)
    await until("the other stream goes on", lambda: len(fine.items) > seen + 10)
    assert fine.items == list(range(len(fine.items)))
    call.cancel()
    await world.close()


async def test_a_slow_reader_ends_in_one_clean_error(start_nats: Any, over: Any, reader: Any) -> None:
    """The server drops a client that does not keep up: its stream is incomplete, never wrong; later ones are fine."""
    server = start_nats("max_pending: 1MB\nwrite_deadline: 200ms")
    world = over(server)

    async def flood(request: int) -> AsyncIterator[list[Any]]:
        for number in range(request):
            yield [number, "x" * 20_000]
            await asyncio.sleep(0)

    _, instance = await world.worker(from_generator(flood))
    caller = await world.caller()
    sink, _ = start(caller, instance, 10**5, reader)
    await asyncio.wait_for(sink.begun.wait(), 10)
    bus = world.buses[-1]
    bus._protocol._transport.pause_reading()
    error = await sink.end(30)
    assert error is not None
    assert error.retryable
    assert [item[0] for item in sink.items] == list(range(len(sink.items)))
    again, _ = start(caller, instance, 20, reader)
    assert await again.end(20) is None
    assert [item[0] for item in again.items] == list(range(20))
    await world.close()


def test_connecting_waits_for_the_server(start_nats: Any, until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A server that starts later is waited for, with a line that says where; one that never comes is an error."""

    async def main() -> None:
        server = start_nats()
        server.kill()
        bus = NatsBus(NatsConfig(servers=(f"nats://user:secret@127.0.0.1:{server.port}",), start_limit=20.0))
        connecting = asyncio.create_task(bus.connect())
        await until("the line", lambda: "waiting for NATS" in caplog.text)
        server.start()
        await connecting
        assert bus.connected
        await bus.close()
        server.kill()
        hopeless = NatsBus(NatsConfig(servers=(server.url,), start_limit=0.3))
        with pytest.raises(CannotConnect, match=f"no NATS server at 127.0.0.1:{server.port} within 0.3 s"):
            await hopeless.connect()
        await hopeless.close()

    asyncio.run(main())
    assert "secret" not in caplog.text


async def test_subscribing_during_an_outage(start_nats: Any, until: Any) -> None:
    """It waits for the server's return, and is active then."""
    server = start_nats()
    bus = NatsBus(NatsConfig(servers=(server.url,)))
    await bus.connect()
    server.kill()
    await until("the loss is known", lambda: not bus.connected)
    got: list[Message] = []
    subscribing = asyncio.create_task(bus.subscribe("a", got.append, lambda: None))
    await asyncio.sleep(0)
    server.start()
    await subscribing
    bus.publish("a", b"x")
    await bus.flush()
    assert [message.data for message in got] == [b"x"]
    await bus.close()


async def test_a_second_server_takes_over(start_nats: Any, until: Any) -> None:
    """Of several configured servers, one that answers is enough."""
    dead, living = start_nats(), start_nats()
    dead.kill()
    bus = NatsBus(NatsConfig(servers=(dead.url, living.url)))
    await bus.connect()
    await bus.flush()
    await bus.close()


AUTH = 'authorization { users = [ { user: a, password: "p w" }, { user: limited, password: x, \
permissions: { subscribe: "ok.>" } } ] }'


async def test_credentials(start_nats: Any) -> None:
    """User and password let in; wrong ones end the start at once, in words and without the password."""
    server = start_nats(AUTH)
    for right in (
        NatsConfig(servers=(server.url,), username="a", password="p w"),
        NatsConfig(servers=(server.url.replace("//", "//limited:x@"),)),
    ):
        bus = NatsBus(right)
        await bus.connect()
        await bus.close()
    for wrong in (
        NatsConfig(servers=(server.url,)),
        NatsConfig(servers=(server.url,), username="a", password="wrongsecret"),
        NatsConfig(servers=(server.url,), token="wrongsecret"),
    ):
        stranger = NatsBus(wrong)
        with pytest.raises(CannotConnect, match="refuses the credentials") as caught:
            await stranger.connect()
        assert "wrongsecret" not in str(caught.value)
        await stranger.close()


async def test_tokens_and_nkeys(start_nats: Any, tmp_path: Path) -> None:
    """A token, and an nkey seed read from a file."""
    seed = b"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    path = tmp_path / "seed"
    path.write_bytes(seed + b"\n")

    with_token = start_nats('authorization { token: "t0k" }')
    with_nkey = start_nats(f"authorization {{ users = [ {{ nkey: {public} }} ] }}")
    for config in (
        NatsConfig(servers=(with_token.url,), token="t0k"),
        NatsConfig(servers=(with_nkey.url,), nkey=str(path)),
    ):
        bus = NatsBus(config)
        await bus.connect()
        await bus.flush()
        await bus.close()


async def test_unusable_files_are_said_at_once(start_nats: Any, tmp_path: Path) -> None:
    """Files that hold something else, or nothing, and WebSocket addresses: one sentence, no waiting."""
    garbage = tmp_path / "garbage"
    garbage.write_text("this is no seed")
    empty = tmp_path / "empty"
    empty.write_text("")

    server = start_nats()
    files = [str(garbage), str(empty), str(tmp_path / "missing")]
    configs = [NatsConfig(servers=(server.url,), nkey=file) for file in files]
    configs += [NatsConfig(servers=(server.url,), tls_ca=file) for file in files]
    configs += [NatsConfig(servers=(server.url,), credentials_file=file) for file in files]
    configs += [NatsConfig(servers=(server.url.replace("nats:", "ws:"),))]
    for config in configs:
        bus = NatsBus(config)
        with pytest.raises(CannotConnect, match=r"can't be used|WebSocket") as caught:
            await bus.connect()
        assert "no seed" not in str(caught.value)
        await bus.close()


async def test_a_refused_subscription_is_said(start_nats: Any) -> None:
    """Without the right to listen, `subscribe` raises instead of hearing nothing for ever."""
    server = start_nats(AUTH)
    bus = NatsBus(NatsConfig(servers=(server.url,), username="limited", password="x"))
    await bus.connect()
    await bus.subscribe("ok.a", lambda _: None, lambda: None)
    with pytest.raises(CannotConnect, match="Permissions Violation"):
        await bus.subscribe("dyn.other", lambda _: None, lambda: None)
    await bus.flush()
    await bus.close()


async def test_rotated_credentials_count_at_the_next_dial(start_nats: Any, tmp_path: Path, until: Any) -> None:
    """A process whose server starts refusing it keeps trying, and is back when it is let in again."""
    server = start_nats(AUTH)
    bus = NatsBus(NatsConfig(servers=(server.url,), username="a", password="p w"))
    await bus.connect()
    got: list[Message] = []
    lost: list[int] = []
    await bus.subscribe("a", got.append, lambda: lost.append(1))
    server.kill()
    server._config = AUTH.replace("p w", "other")
    server.start()
    await until("the loss is known", lambda: not bus.connected)
    await asyncio.sleep(0.3)
    server.kill()
    server._config = AUTH
    server.start()
    await until("back", lambda: bus.connected)
    assert lost == [1]
    bus.publish("a", b"x")
    await until("the message", lambda: got)
    await bus.close()


async def test_the_handshake_is_nats_py_s_and_the_rest_is_ours(nats_server: Any) -> None:
    """Pins what `_take_over` uses of nats-py: its tasks end, its transport is ours, nothing of it reads any more."""
    bus = NatsBus(NatsConfig(servers=(nats_server.url,)))
    await bus.connect()
    client = bus._client
    assert client is not None
    await asyncio.sleep(0)
    for task in (client._reading_task, client._ping_interval_task, client._flusher_task):
        assert task is not None
        assert task.done()
    transport: Any = client._transport
    assert transport._io_writer.transport.get_protocol() is bus._protocol
    assert transport._io_writer.transport.get_extra_info("socket").getsockopt(6, 1), "TCP_NODELAY"
    await bus.close()


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    """A certificate authority's certificate, a server's and a client's, as files."""
    authority = trustme.CA()
    names = ("ca", "other", "server", "server_key", "client", "client_key")
    paths = {name: str(tmp_path / f"{name}.pem") for name in names}
    authority.cert_pem.write_to_path(paths["ca"])
    trustme.CA().cert_pem.write_to_path(paths["other"])
    for who, leaf in (("server", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("client"))):
        leaf.cert_chain_pems[0].write_to_path(paths[who])
        leaf.private_key_pem.write_to_path(paths[f"{who}_key"])
    return paths


async def test_tls(start_nats: Any, certificates: dict[str, str], over: Any, reader: Any) -> None:
    """Over TLS with a client certificate requests work, large ones too; an unknown authority is refused in words."""
    files = certificates
    server = start_nats(
        f'tls {{ cert_file: "{files["server"]}", key_file: "{files["server_key"]}", '
        f'ca_file: "{files["ca"]}", verify: true }}'
    )

    config = NatsConfig(
        servers=(server.url.replace("nats://", "tls://"),),
        tls_ca=files["ca"], tls_cert=files["client"], tls_key=files["client_key"],
    )  # fmt: skip
    bus = NatsBus(config)
    await bus.connect()
    got: list[Message] = []
    await bus.subscribe("a", got.append, lambda: None)
    bus.publish("a", b"x" * bus.max_payload)
    bus.publish("a", b"y")
    await bus.flush()
    assert [len(message.data) for message in got] == [bus.max_payload, 1]
    await bus.close()
    stranger = NatsBus(NatsConfig(servers=config.servers, tls_ca=files["other"]))
    with pytest.raises(CannotConnect, match="NATS_TLS_CA does not vouch"):
        await stranger.connect()
    await stranger.close()


async def test_tls_is_not_given_up_silently(start_nats: Any) -> None:
    """A `tls://` address of a server without TLS is refused: nobody should send tokens in the clear unawares."""
    server = start_nats()
    bus = NatsBus(NatsConfig(servers=(server.url.replace("nats://", "tls://"),)))
    with pytest.raises(CannotConnect, match="does not speak TLS"):
        await bus.connect()
    await bus.close()
