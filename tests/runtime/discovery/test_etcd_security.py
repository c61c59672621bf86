"""Passwords and certificates of etcd, on a real server; each mistake is one sentence that names the variable."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.fixtures_etcd import EtcdServer

from dynamo.runtime.config import EtcdConfig
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.discovery.registry import Registry
from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.transport.bus import Verdict

pytestmark = pytest.mark.servers


def _control(server: EtcdServer, *words: str) -> None:
    subprocess.run(["etcdctl", "--endpoints", server.url, *words], check=True, stdout=subprocess.DEVNULL, timeout=20)


@pytest.fixture
def guarded(own_etcd: EtcdServer) -> EtcdServer:
    """An etcd that asks for a password; `tenant` may use the keys under `dynamo/`."""
    _control(own_etcd, "user", "add", "root:secret")
    _control(own_etcd, "user", "grant-role", "root", "root")
    _control(own_etcd, "user", "add", "tenant:pass")
    _control(own_etcd, "user", "add", "stranger:pass")
    _control(own_etcd, "role", "add", "dynamo")
    _control(own_etcd, "role", "grant-permission", "--prefix=true", "dynamo", "readwrite", "dynamo/")
    _control(own_etcd, "user", "grant-role", "tenant", "dynamo")
    _control(own_etcd, "auth", "enable")
    return own_etcd


def use(config: EtcdConfig) -> Any:
    """Connect, write under a lease, watch it, and return what the watch brought."""

    async def main() -> Any:
        store = EtcdStore(config)
        try:
            async with asyncio.timeout(20):
                await store.connect()
                lease = await store.grant(5)
                revision = await store.put("dynamo/k", b"v", lease)
                assert await lease.keep_alive()
                changes = store.watch("dynamo/", revision)
                seen = await anext(changes)
                await changes.aclose()  # type: ignore[attr-defined]
                return seen[0].value
        finally:
            await store.close()

    return asyncio.run(main())


def test_password(guarded: EtcdServer) -> None:
    """With user and password everything works, watches and leases included."""
    assert use(guarded.config(username="tenant", password="pass")) == b"v"


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        ({}, "set ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD"),
        ({"username": "tenant", "password": "wrong"}, "refuses user tenant: check ETCD_AUTH_PASSWORD"),
        ({"username": "stranger", "password": "pass"}, "does not let user stranger at keys under dynamo/"),
    ],
    ids=["none", "wrong", "no-rights"],
)
def test_refused(guarded: EtcdServer, who: dict[str, str], sentence: str) -> None:
    """A refusal ends the wait at once; the password is not in the message."""
    with pytest.raises(InvalidArgument, match=sentence) as caught:
        use(guarded.config(**who))
    assert "wrong" not in caught.value.message


async def test_a_token_that_ended_is_renewed(guarded: EtcdServer) -> None:
    """etcd forgets its tokens when it restarts: the store signs in again by itself."""
    store = EtcdStore(guarded.config(username="tenant", password="pass"))
    try:
        await store.connect()
        guarded.kill()
        guarded.start()
        await asyncio.to_thread(guarded.wait)
        await store.connect()
        await store.put("dynamo/k", b"again")
    finally:
        await store.close()


def keep(folder: Path, **files: str) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


def test_a_new_password_in_the_files_needs_no_restart(guarded: EtcdServer, tmp_path: Path) -> None:
    """The user is taken away and another one stands in the files: the same store and the same lease go on."""
    _control(guarded, "--user", "root:secret", "user", "add", "next:other")
    _control(guarded, "--user", "root:secret", "user", "grant-role", "next", "dynamo")

    async def main() -> None:
        store = EtcdStore(guarded.config(folder=keep(tmp_path, username="tenant", password="pass\n")))
        try:
            await store.connect()
            lease = await store.grant(5)
            await store.put("dynamo/k", b"v", lease)
            await asyncio.to_thread(_control, guarded, "--user", "root:secret", "user", "delete", "tenant")
            with pytest.raises(InvalidArgument, match="refuses user tenant"):
                await store.put("dynamo/k", b"too early", lease)
            keep(tmp_path, username="next", password="other")
            await store.put("dynamo/k", b"w", lease)
            assert await lease.keep_alive()
        finally:
            await store.close()

    asyncio.run(main())


async def test_an_etcd_that_lost_its_data_is_signed_in_to_again(guarded: EtcdServer) -> None:
    """It has the same user, and a shorter history than the token that it gave before."""

    def emptied() -> None:
        guarded.kill()
        guarded.start(empty=True)
        guarded.wait()
        _control(guarded, "user", "add", "root:secret")
        _control(guarded, "user", "grant-role", "root", "root")
        _control(guarded, "auth", "enable")

    store = EtcdStore(guarded.config(username="root", password="secret"))
    try:
        await store.connect()
        for number in range(50):
            await store.put("dynamo/k", str(number).encode())
        signed_in = await store._cluster.use()
        signed_in.metadata = None  # a token of now
        await store.put("dynamo/k", b"v")
        await asyncio.to_thread(emptied)
        await store.connect()
        await store.put("dynamo/k", b"w")
    finally:
        await store.close()


@pytest.mark.parametrize("known", [True, False], ids=["files before", "files after"])
async def test_sign_in_that_is_asked_for_later(own_etcd: EtcdServer, tmp_path: Path, known: bool) -> None:
    """etcd asked for no password when the store connected, and does now."""
    files = {"username": "root", "password": "secret"}
    store = EtcdStore(own_etcd.config(folder=keep(tmp_path, **(files if known else {}))))
    try:
        await store.connect()
        await asyncio.to_thread(_control, own_etcd, "user", "add", "root:secret")
        await asyncio.to_thread(_control, own_etcd, "auth", "enable")
        if not known:
            with pytest.raises(InvalidArgument, match="asks who we are"):
                await store.put("dynamo/k", b"v")
            keep(tmp_path, **files)
        await store.put("dynamo/k", b"v")
    finally:
        await store.close()


def test_a_password_that_nobody_asks_for(own_etcd: EtcdServer) -> None:
    """Credentials for an etcd without authentication are no error."""
    assert use(own_etcd.config(username="tenant", password="pass")) == b"v"


def test_rights_for_one_namespace(own_etcd: EtcdServer) -> None:
    """What a tenant needs: its own instances and clients, the epoch, and a look at the clients of all namespaces."""
    _control(own_etcd, "put", "dynamo/epoch", "e")
    _control(own_etcd, "user", "add", "root:secret")
    _control(own_etcd, "user", "grant-role", "root", "root")
    _control(own_etcd, "user", "add", "tenant:pass")
    _control(own_etcd, "role", "add", "tenant")
    for prefix in ("instances", "clients"):
        _control(own_etcd, "role", "grant-permission", "--prefix=true", "tenant", "readwrite", f"dynamo/{prefix}/ns/")
    for key in ("epoch", "clients/_all/"):
        _control(own_etcd, "role", "grant-permission", "--prefix=true", "tenant", "read", f"dynamo/{key}")
    _control(own_etcd, "user", "grant-role", "tenant", "tenant")
    _control(own_etcd, "auth", "enable")

    async def ping(_key: InstanceKey) -> Verdict:
        return Verdict.ALIVE

    async def main() -> None:
        store = EtcdStore(own_etcd.config(username="tenant", password="pass"))
        registry = Registry(store, ping, 1)
        mine = InstanceKey(EndpointPath("ns", "b", "g"), 5)
        try:
            async with asyncio.timeout(20):
                await store.connect()
                view = await registry.watch("ns", "frontend")
                await view.wait_synced()
                registration = await registry.register(mine)
                assert await registration.known_to_all(10)
                assert registration.readiness().ready
                assert view.routable(mine.path) == [mine]
                with pytest.raises(InvalidArgument, match="does not let user tenant"):
                    await store.put("dynamo/instances/other/b/g/1", b"x")
        finally:
            await registry.stop()
            await store.close()

    asyncio.run(main())


class Tls:
    """An etcd that speaks TLS only and wants a client certificate, with the files that go with it."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.other_ca = str(folder / "ca.pem"), str(folder / "other.pem")
        self.cert, self.key = str(folder / "client.pem"), str(folder / "client.key")
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.other_ca)
        client, server = authority.issue_cert("client@example.org"), authority.issue_cert("127.0.0.1", "localhost")
        client.cert_chain_pems[0].write_to_path(self.cert)
        client.private_key_pem.write_to_path(self.key)
        server.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
        server.private_key_pem.write_to_path(str(folder / "server.key"))
        flags = ["--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server.key")]
        flags += ["--client-cert-auth", "--trusted-ca-file", self.ca]
        self.server = EtcdServer(*flags, scheme="https")


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[Tls]:
    made = Tls(tmp_path)
    try:
        made.server.start()
        made.server.wait()
        yield made
    finally:
        made.server.close()


def test_certificates(tls: Tls) -> None:
    """TLS with a private authority and a client certificate."""
    assert use(tls.server.config(ca=tls.ca, client_cert=tls.cert, client_key=tls.key)) == b"v"


def test_new_certificates_in_the_files_need_no_restart(tls: Tls, tmp_path: Path) -> None:
    """A store that came with the wrong authority gets through once its file has the right one."""
    (tmp_path / "auth").mkdir()
    for name, path in (("tls.crt", tls.cert), ("tls.key", tls.key), ("ca.crt", tls.other_ca)):
        (tmp_path / "auth" / name).write_bytes(Path(path).read_bytes())

    async def main() -> None:
        store = EtcdStore(tls.server.config(folder=str(tmp_path / "auth")))
        try:
            with pytest.raises(CannotConnect):
                await store.put("dynamo/k", b"v")
            shutil.copy(tls.ca, tmp_path / "auth" / "ca.crt")
            await store.connect()
            await store.put("dynamo/k", b"v")
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("mistake", ["other authority", "no certificate", "plain text"])
def test_tls_mistakes(tls: Tls, mistake: str) -> None:
    """A connection that TLS refuses ends in one sentence within the limit."""
    config = tls.server.config(ca=tls.ca, client_cert=tls.cert, client_key=tls.key, start_limit=1.0)
    every: dict[str, dict[str, Any]] = {
        "other authority": {"ca": tls.other_ca},
        "no certificate": {"client_cert": None, "client_key": None},
        "plain text": {
            "ca": None,
            "client_cert": None,
            "client_key": None,
            "endpoints": (f"127.0.0.1:{tls.server.port}",),
        },
    }
    with pytest.raises(CannotConnect, match="did not answer within"):
        use(dataclasses.replace(config, **every[mistake]))


def test_a_certificate_file_that_is_gone(tmp_path: Path) -> None:
    """A file that can't be read is named with its variable."""
    config = EtcdConfig(endpoints=("https://127.0.0.1:1",), ca=str(tmp_path / "gone.pem"))
    with pytest.raises(DynamoException, match=r"ETCD_AUTH_CA: .*gone.pem can't be read"):
        use(config)
