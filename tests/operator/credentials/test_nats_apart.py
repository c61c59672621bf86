"""Two namespaces, each with a real NATS of its own: users of one are strangers to the other, and so is its flood."""

from __future__ import annotations

import base64
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest
from tests.fixtures_nats import NatsServer

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials import permissions as rights
from dynamo.operator.credentials.nats_trust import Trust, trust_of
from dynamo.operator.manifests import nats

pytestmark = pytest.mark.servers
MIB = 1 << 20
PENDING = 16 * MIB
CONFIG = f"max_payload: 8388608\nmax_pending: {PENDING}\ninclude ./auth/server.conf"
READERS = 12
"""That subscribe and read nothing: NATS keeps up to `max_pending` for each."""
FLOODED = 64 * MIB
CALM = 24 * MIB
"""More than a Go program's memory moves by itself."""
ECHOES = 40
SECONDS = 0.1
"""Of an echo at the median; on an idle machine it is less than a millisecond."""


class Tenant:
    """A namespace: its server, as the Secret is mounted, and a user of its pipeline."""

    def __init__(self, name: str, folder: Path) -> None:
        self.subject = f"dyn.{name}_llama.flood"
        self.trust: Trust = trust_of({}, CONFIG, lambda: os.urandom(32), 1)
        (folder / "auth").mkdir(parents=True)
        (folder / "auth" / nats_keys.SERVER_CONF).write_bytes(self.trust.data[nats_keys.SERVER_CONF])
        self.server = NatsServer(folder, self.trust.data[nats.CONFIG].decode())
        subjects = rights.subjects(f"{name}_llama")
        self.user = nats_keys.new_user(self.trust.issuer, name, subjects, lambda: os.urandom(32), 1)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[tuple[Tenant, Tenant]]:
    """The hostile one first."""
    pair = Tenant("hostile", tmp_path / "hostile"), Tenant("serving", tmp_path / "serving")
    yield pair
    for tenant in pair:
        tenant.server.kill()


def signed_in(server: NatsServer, user: bytes) -> socket.socket:
    """A connection without a client library, which would read; raises where the server doesn't let it in."""
    lines = user.decode().splitlines()
    token, seed = (next(line for line in lines if line.startswith(start)) for start in ("ey", "SU"))
    connection = socket.create_connection(("127.0.0.1", server.port), 20)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    nonce = json.loads(until(connection, b"\r\n").removeprefix(b"INFO "))["nonce"]
    signature = base64.urlsafe_b64encode(nkeys.from_seed(seed.encode()).sign(nonce.encode())).decode().rstrip("=")
    about = {"verbose": False, "pedantic": False, "jwt": token, "sig": signature, "echo": True, "headers": True}
    connection.sendall(f"CONNECT {json.dumps(about)}\r\nPING\r\n".encode())
    if (answer := until(connection, b"\r\n")) != b"PONG\r\n":
        connection.close()
        raise PermissionError(answer.decode())
    return connection


def until(connection: socket.socket, end: bytes) -> bytes:
    """What it says, up to there."""
    data = b""
    while not data.endswith(end):
        more = connection.recv(1)
        if not more:
            raise PermissionError(data.decode() or "closed")
        data += more
    return data


def flood(tenant: Tenant, ended: threading.Event) -> None:
    """Readers that don't, and one that publishes to them."""
    readers = [signed_in(tenant.server, tenant.user) for _ in range(READERS)]
    for reader in readers:
        reader.sendall(f"SUB {tenant.subject} 1\r\nPING\r\n".encode())
        until(reader, b"PONG\r\n")
    publisher = signed_in(tenant.server, tenant.user)
    message = f"PUB {tenant.subject} {MIB}\r\n".encode() + b"x" * MIB + b"\r\n"
    sent = 0
    while not ended.is_set():
        if sent < PENDING // MIB - 2:  # one more, and the server would cut the readers off
            publisher.sendall(message)
            sent += 1
        time.sleep(0.01)
    for entry in (*readers, publisher):
        entry.close()


def echoed(tenant: Tenant) -> float:
    """The median of the seconds that a message of a connection's own takes."""
    connection, seconds = signed_in(tenant.server, tenant.user), []
    connection.sendall(f"SUB {tenant.subject} 1\r\n".encode())
    for _ in range(ECHOES):
        began = time.perf_counter()
        connection.sendall(f"PUB {tenant.subject} 2\r\nhi\r\n".encode())
        until(connection, b"hi\r\n")
        seconds.append(time.perf_counter() - began)
    connection.close()
    return statistics.median(seconds)


def test_users_of_one_are_nobody_to_the_other(tenants: tuple[Tenant, Tenant]) -> None:
    """Nor are those whom nobody vouches for."""
    first, other = tenants
    for tenant, stranger in ((first, other), (other, first)):
        signed_in(tenant.server, tenant.user).close()
        with pytest.raises(PermissionError, match="Authorization Violation"):
            signed_in(tenant.server, stranger.user)


def test_a_flood_fills_one_and_not_the_other(
    tenants: tuple[Tenant, Tenant], record_property: Callable[[str, object], None]
) -> None:
    """The memory of the other stays, and its messages are as fast."""
    hostile, victim = tenants
    quiet = echoed(victim)
    before = hostile.server.memory, victim.server.memory
    ended = threading.Event()
    thread = threading.Thread(target=flood, args=(hostile, ended))
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while hostile.server.memory - before[0] < FLOODED:
            assert time.monotonic() < deadline, f"only {(hostile.server.memory - before[0]) >> 20} MiB more"
            time.sleep(0.05)
        flooded = echoed(victim)
        grown = victim.server.memory - before[1]
        mib = [entry >> 20 for entry in (before[0], hostile.server.memory, before[1], victim.server.memory)]
        record_property("MiB of the hostile one's NATS, and of the other's, before and in the flood", mib)
        record_property("milliseconds of an echo at the other's", [round(1000 * part, 2) for part in (quiet, flooded)])
    finally:
        ended.set()
        thread.join(30)
    assert grown < CALM
    assert flooded < SECONDS
