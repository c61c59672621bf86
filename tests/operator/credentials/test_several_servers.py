"""`ha`: several NATS servers in a namespace, several etcd members; what they show each other."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import ssl
import time
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from tests.operator.apiserver import ApiServer
from tests.operator.credentials.bench import NOW
from tests.operator.credentials.nats_bench import SERVER, Bench, run

from dynamo.operator.credentials.etcd_peers import make
from dynamo.operator.credentials.nats_trust import trust_of
from dynamo.operator.credentials.peer_certificates import CERTIFICATE, KEY, is_for, new_certificate
from dynamo.operator.credentials.secret import data_in
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.resources import SECRETS
from dynamo.operator.manifests import nats
from dynamo.operator.settings import EtcdPeers

CLUSTER = dataclasses.replace(SERVER, replicas=3)
HOSTS = ["etcd-0.etcd.dynamo.svc", "etcd-1.etcd.dynamo.svc"]
ROUTES_FILE = re.compile(
    r'authorization \{ user: "routes", password: "([0-9a-f]{64})" \}\n'
    r'routes: \["nats-route://routes:\1@dynamo-nats-routes\.serving\.svc:6222"\]\n'
)


def test_three_servers_know_each_other() -> None:
    """They replace each other one at a time, prefer nodes of their own, and let nobody else use their routes."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        spec = bench.one("Deployment")["spec"]
        assert (spec["replicas"], spec["minReadySeconds"]) == (3, nats.SETTLE_SECONDS)
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}
        assert "podAntiAffinity" in spec["template"]["spec"]["affinity"]
        routes = bench.server.one("Service", nats.ROUTES, "serving")["spec"]
        assert (routes["clusterIP"], routes["publishNotReadyAddresses"]) == ("None", True)
        assert bench.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
        rules = bench.one("NetworkPolicy")["spec"]["ingress"]
        (own,) = [rule for rule in rules if rule["ports"][0]["port"] == nats.ROUTES_PORT]
        assert own["from"] == [{"podSelector": {"matchLabels": nats.selector()}}]
        assert ROUTES_FILE.fullmatch(bench.data()["routes.conf"].decode())
        assert is_for(bench.data(), [nats.routes_host("serving")])

    run(case, CLUSTER)


def test_what_they_know_each_other_by_is_kept() -> None:
    """At rest nothing is written, also by a new operator; a Secret without it gets it, and the users' keys stay."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        alone = bench.data()
        bench.start(CLUSTER)
        for _ in range(3):
            await bench.reconcile()
        whole = bench.data()
        assert whole.keys() - alone.keys() == {"routes.conf", CERTIFICATE, KEY}
        assert alone.items() <= whole.items()
        assert bench.is_let_in()
        bench.start(CLUSTER)
        assert [(await bench.reconcile()).writes for _ in range(3)] == [0, 0, 0]
        assert bench.data() == whole
        bench.start(SERVER)
        for _ in range(3):
            await bench.reconcile()
        assert bench.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
        assert "affinity" not in bench.one("Deployment")["spec"]["template"]["spec"]
        assert bench.is_let_in()

    run(case)


def test_an_affinity_of_the_users_stays() -> None:
    """The chart's value is the pod's."""
    given = dataclasses.replace(CLUSTER, template={"spec": {"affinity": {"nodeAffinity": {}}}})

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        assert bench.one("Deployment")["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {}}

    run(case, given)


def context(side: ssl.Purpose, folder: Path, data: dict[str, bytes]) -> ssl.SSLContext:
    """TLS as servers of a cluster use it: the one certificate is shown, and is all that is trusted."""
    for name, content in data.items():
        (folder / name).write_bytes(content)
    made = ssl.create_default_context(side, cafile=str(folder / CERTIFICATE))
    made.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


async def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bytes:
    """What a client reads of a server."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server) as listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        try:
            return await reader.read()
        finally:
            writer.close()


async def test_members_take_each_other_and_nobody_else(tmp_path: Path) -> None:
    """By a real TLS handshake, both sides with the one certificate; one that somebody else made is refused."""
    ours = new_certificate(HOSTS, NOW.timestamp())
    server = context(ssl.Purpose.CLIENT_AUTH, tmp_path, ours)
    client = context(ssl.Purpose.SERVER_AUTH, tmp_path, ours)
    assert await shake_hands(server, client, HOSTS[1]) == b"hello"
    (other := tmp_path / "other").mkdir()
    stranger = context(ssl.Purpose.SERVER_AUTH, other, new_certificate(HOSTS, NOW.timestamp()))
    with pytest.raises(ssl.SSLError):
        await shake_hands(server, stranger, HOSTS[1])
    with pytest.raises(ssl.SSLCertVerificationError):
        await shake_hands(server, client, "etcd-2.etcd.dynamo.svc")


def test_a_certificate_that_does_not_fit_is_none() -> None:
    """Of other hosts, with another key, half, or no PEM at all."""
    data, other = new_certificate(HOSTS, NOW.timestamp()), new_certificate(HOSTS, NOW.timestamp())
    assert is_for(data, HOSTS[:1])
    assert not is_for(data, [*HOSTS, "etcd-2.etcd.dynamo.svc"])
    assert not is_for({**data, KEY: other[KEY]}, HOSTS)
    assert not is_for({CERTIFICATE: data[CERTIFICATE]}, HOSTS)
    assert not is_for({**data, CERTIFICATE: b"nothing"}, HOSTS)


def test_a_hostile_key_costs_nothing() -> None:
    """A tenant may write the Secret of its namespace: a key of another kind or size is not even read."""
    data = new_certificate(HOSTS, NOW.timestamp())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    large = rsa.generate_private_key(65537, 4096).private_bytes(encoding, form, serialization.NoEncryption())
    locked = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        encoding, form, serialization.BestAvailableEncryption(b"x")
    )
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(encoding, form, serialization.NoEncryption())
    began = time.process_time()
    for key in (large, locked, other, b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 1_000_000, b""):
        assert not is_for({**data, KEY: key}, HOSTS)
        assert not is_for({**data, CERTIFICATE: data[CERTIFICATE] * 1000, KEY: key}, HOSTS)
    assert time.process_time() - began < 1.0


def test_what_somebody_else_wrote_into_the_secret_is_replaced() -> None:
    """Routes to a foreign server don't stay, nor a certificate of others; the password that we made does."""
    first = trust_of({}, "", lambda: bytes(32), 1, None, "routes.serving.svc").data
    added = first["routes.conf"] + b'routes: ["nats-route://elsewhere:6222"]\n'
    again = trust_of({**first, "routes.conf": added, KEY: b"x"}, "", lambda: bytes(32), 1, None, "routes.serving.svc")
    assert again.data["routes.conf"] == first["routes.conf"]
    assert is_for(again.data, ["routes.serving.svc"])
    assert again.data["signing.nk"] == first["signing.nk"]
    for written in (b"", b"x" * 1_000_000):
        new = trust_of({**first, "routes.conf": written}, "", lambda: bytes([7] * 32), 1, None, "routes.serving.svc")
        assert (b"07" * 32) in new.data["routes.conf"]


def test_another_certificate_is_another_pod() -> None:
    """Servers with the old one would be strangers to those with the new one: all are replaced."""

    async def case(bench: Bench) -> None:
        await bench.reconcile()
        before = bench.one("Deployment")["spec"]["template"]["metadata"]["annotations"]
        secret = bench.one("Secret")
        del secret["data"][KEY]
        bench.server.put(secret, "serving")
        await bench.reconcile()
        await bench.reconcile()
        assert is_for(bench.data(), [nats.routes_host("serving")])
        assert bench.one("Deployment")["spec"]["template"]["metadata"]["annotations"] != before

    run(case, CLUSTER)


async def test_the_members_secret_is_made_once(caplog: pytest.LogCaptureFixture) -> None:
    """Two operators agree on one; what is there stays, and what doesn't fit is named, not replaced: members use it."""
    peers = EtcdPeers("etcd-peers", tuple(HOSTS))
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        api = Api(session, server.url)
        assert await asyncio.gather(*(make(api, "dynamo", peers) for _ in range(2))) == ["", ""]
        secret = await api.get(SECRETS, "dynamo", "etcd-peers")
        assert secret is not None
        assert is_for(data_in(secret), HOSTS)
        assert await make(api, "dynamo", peers) == ""
        assert await api.get(SECRETS, "dynamo", "etcd-peers") == secret
        more = EtcdPeers("etcd-peers", (*HOSTS, "etcd-2.etcd.dynamo.svc"))
        assert "delete it" in await make(api, "dynamo", more)
        assert await api.get(SECRETS, "dynamo", "etcd-peers") == secret
    assert "BEGIN" not in caplog.text
