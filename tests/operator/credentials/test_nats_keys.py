"""Users that the operator makes offline, on a real NATS server: their own namespace and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures_nats import NatsServer

from dynamo.operator.credentials import nats_keys, permissions
from dynamo.operator.credentials.nats_keys import KeysError, NatsIssuer
from dynamo.runtime import names
from dynamo.runtime.config import NatsConfig
from dynamo.runtime.errors import CannotConnect
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.transport.bus import Message
from dynamo.runtime.transport.nats import NatsBus

OURS, THEIRS = "serving_llama", "research_llama"


def draw() -> bytes:
    return os.urandom(32)


def platform(now: int = 1) -> dict[str, bytes]:
    return nats_keys.new_platform(draw, now)


def user(data: dict[str, bytes], namespace: str) -> bytes:
    return nats_keys.new_user(NatsIssuer.of(data), namespace, permissions.subjects(namespace), draw, 1)


Start = Callable[[dict[str, bytes]], NatsServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A server that trusts a platform's keys, as the chart sets it up."""
    servers: list[NatsServer] = []

    def begin(data: dict[str, bytes]) -> NatsServer:
        folder = tmp_path / f"nats{len(servers)}"
        folder.mkdir()
        (folder / "server.conf").write_bytes(data[nats_keys.SERVER_CONF])
        servers.append(NatsServer(folder, "include ./server.conf"))
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()


def kept(folder: Path, credentials: bytes) -> str:
    """As the Secret is mounted."""
    folder.mkdir(exist_ok=True)
    (folder / "user.creds").write_bytes(credentials)
    return str(folder)


async def connected(server: NatsServer, folder: Path, credentials: bytes) -> NatsBus:
    bus = NatsBus(NatsConfig(servers=(server.url,), folder=kept(folder, credentials), start_limit=10))
    await bus.connect()
    return bus


def listening(bus: NatsBus, subject: str, messages: list[bytes]) -> Any:
    def note(message: Message) -> None:
        messages.append(bytes(message.data))

    return bus.subscribe(subject, note, lambda: None)


@pytest.mark.servers
async def test_a_user_has_its_namespace_and_nothing_else(start: Start, tmp_path: Path) -> None:
    """Neither listening nor speaking reaches another namespace, with wildcards or without."""
    data = platform()
    server = start(data)
    mine = await connected(server, tmp_path / "a", user(data, OURS))
    twin = await connected(server, tmp_path / "b", user(data, OURS))
    other = await connected(server, tmp_path / "c", user(data, THEIRS))
    heard: list[bytes] = []
    await listening(mine, f"dyn.{OURS}.ep.backend.generate.*.req", heard)
    for subject in (f"dyn.{OURS}.>", f"dyn.{OURS}.ep.a", "dyn.>", "dyn.*.ep.>", ">", "_INBOX.>", "$SYS.>"):
        with pytest.raises(CannotConnect, match=r"(?i)permissions violation"):
            await listening(other, subject, heard)
    other.publish(f"dyn.{OURS}.ep.backend.generate.1.req", b"theirs")
    await other.flush()
    twin.publish(f"dyn.{OURS}.ep.backend.generate.1.req", b"ours")
    await twin.flush()
    await mine.flush()
    assert heard == [b"ours"]
    assert other.errors == 8
    for bus in (mine, twin, other):
        await bus.close()


@pytest.mark.servers
async def test_strangers_are_refused(start: Start, tmp_path: Path) -> None:
    """Nobody without credentials, and nobody whom another platform vouches for."""
    data, stranger = platform(), platform()
    server = start(data)
    bare = NatsBus(NatsConfig(servers=(server.url,), start_limit=10))
    with pytest.raises(CannotConnect, match="refuses the credentials"):
        await bare.connect()
    forged = NatsIssuer(NatsIssuer.of(data).account, NatsIssuer.of(stranger).public, stranger[nats_keys.SIGNING])
    for text in (user(stranger, OURS), nats_keys.new_user(forged, OURS, "dyn.>", draw, 1)):
        with pytest.raises(CannotConnect, match="refuses the credentials"):
            await connected(server, tmp_path / "x", text)


@pytest.mark.servers
async def test_a_new_signing_key_cuts_nobody_off(start: Start, tmp_path: Path) -> None:
    """Users of the key before stay valid until the next one; a client takes up its new file at the reconnect."""
    first = platform()
    second = nats_keys.renewed_platform(first, draw, 2)
    third = nats_keys.renewed_platform(second, draw, 3)
    old, new = user(first, OURS), user(second, OURS)

    server = start(second)
    bus = await connected(server, tmp_path / "creds", old)
    states: list[bool] = []
    bus.on_state(states.append)
    kept(tmp_path / "creds", new)
    server.kill()
    (tmp_path / "nats0" / "server.conf").write_bytes(third[nats_keys.SERVER_CONF])
    server.start()
    deadline = time.monotonic() + 20
    while states != [False, True]:
        assert time.monotonic() < deadline, states
        await asyncio.sleep(0.02)
    with pytest.raises(CannotConnect, match="refuses the credentials"):
        await connected(server, tmp_path / "old", old)
    await bus.close()


def test_the_same_draw_and_time_make_the_same_keys() -> None:
    """So a Secret can be made twice, and what differs is seen."""
    first, second = (nats_keys.new_platform(lambda: b"k" * 32, 7) for _ in range(2))
    assert first == second
    assert platform() != platform()


def test_whose_user_it_is_shows_without_the_key() -> None:
    """By public claims: issuer, account and subjects all have to fit."""
    data = platform()
    issuer, text = NatsIssuer.of(data), user(data, OURS)
    assert nats_keys.is_user_of(text, issuer, permissions.subjects(OURS))
    assert not nats_keys.is_user_of(text, issuer, permissions.subjects(THEIRS))
    assert not nats_keys.is_user_of(text, NatsIssuer.of(platform()), permissions.subjects(OURS))
    assert not nats_keys.is_user_of(text, NatsIssuer.of(nats_keys.renewed_platform(data, draw, 2)), "dyn.x.>")
    for broken in (b"", b"a.b.c", b"-----BEGIN NATS USER JWT-----\n..\n", text[:60], b"\xff" * 9):
        assert not nats_keys.is_user_of(broken, issuer, permissions.subjects(OURS))


def test_unusable_keys_are_named_and_not_shown() -> None:
    """A Secret with something else under a key: the sentence names the key and holds nothing of it."""
    data = platform()
    for change in ({nats_keys.SIGNING: b"SECRET"}, {nats_keys.SIGNING: data[nats_keys.OPERATOR_SEED]}):
        with pytest.raises(KeysError, match=nats_keys.SIGNING) as caught:
            NatsIssuer.of(data | change)
        assert "SECRET" not in str(caught.value)
    assert data[nats_keys.SIGNING].decode() not in repr(NatsIssuer.of(data))
    with pytest.raises(KeysError, match=f"{nats_keys.ACCOUNT_SEED} is missing"):
        nats_keys.renewed_platform({k: v for k, v in data.items() if k != nats_keys.ACCOUNT_SEED}, draw, 2)


def test_the_server_needs_nothing_secret() -> None:
    """What the server includes holds public keys and signatures only."""
    data = platform()
    for name in (nats_keys.SIGNING, nats_keys.OPERATOR_SEED, nats_keys.ACCOUNT_SEED):
        assert data[name] not in data[nats_keys.SERVER_CONF]


def test_rights_cover_the_runtimes_names_and_no_more() -> None:
    """Every subject and key of a namespace falls under its rights, and nothing of another namespace does."""
    for namespace in (OURS, THEIRS):
        instance = InstanceKey(EndpointPath(namespace, "backend", "generate"), 5)
        subjects = [names.request_subject(instance), names.control_subject(instance), names.gone_subject(instance, 1)]
        subjects += [names.frame_subject(namespace, 1), names.reply_subject(namespace, 1, 2)]
        allowed = permissions.subjects(OURS).removesuffix(">")
        assert [s.startswith(allowed) for s in subjects] == [namespace == OURS] * 5
        keys = [names.instance_key(instance), names.client_key(namespace, 1)]
        written = [k for k in keys for r in permissions.keys(OURS) if r.write and r.prefix <= k < r.end]
        assert written == (keys if namespace == OURS else [])
    read = {r.prefix for r in permissions.keys(OURS) if not r.write}
    assert read == {names.EPOCH_KEY, names.client_prefix(None)}
    assert json.dumps([r.end for r in permissions.keys("ns")]) == json.dumps(
        ["dynamo/instances/ns0", "dynamo/clients/ns0", "dynamo/clients/_all0", "dynamo/epoci"]
    )


def test_a_pipeline_cannot_name_anothers_namespace() -> None:
    """The part before the underscore is the Kubernetes namespace, which holds none itself."""
    assert permissions.refused("serving", OURS) is None
    assert permissions.refused("serving", "serving_a_b") is None
    for name in (THEIRS, "llama", "_all", "serving-2_llama", "serving_a.>", "serving_*", "serving_a/b"):
        assert "must begin with 'serving_'" in (permissions.refused("serving", name) or "")
    for name in ("a.b", "*", ">", "", "a/b", "a b"):
        with pytest.raises(ValueError, match="no Dynamo namespace"):
            permissions.subjects(name)
        with pytest.raises(ValueError, match="no Dynamo namespace"):
            permissions.keys(name)
