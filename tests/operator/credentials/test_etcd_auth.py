"""Users that the operator makes in a real etcd: the keys of their own namespace and nothing else."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from tests.fixtures_etcd import EtcdServer

from dynamo.operator.credentials import permissions
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth, EtcdError
from dynamo.operator.credentials.etcd_users import REPLACED_SECONDS, Leftovers, Owner, owner_of, user_name
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.discovery.registry import Registry
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EPOCH_KEY, EndpointPath, InstanceKey
from dynamo.runtime.transport.bus import Verdict

pytestmark = pytest.mark.usefixtures("any_etcd_version")

OURS, THEIRS = "serving_llama", "research_llama"
ROOT = EtcdAdmin("root", "secret")


def run(server: EtcdServer, case: Callable[[EtcdAuth], Awaitable[None]], admin: EtcdAdmin = ROOT) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session, asyncio.timeout(60):
            await case(EtcdAuth(session, ["http://127.0.0.1:1", server.url], admin))

    asyncio.run(main())


def store(server: EtcdServer, namespace: str) -> EtcdStore:
    return EtcdStore(server.config(username=namespace, password=f"p-{namespace}"))


async def with_two_users(auth: EtcdAuth) -> None:
    assert await auth.set_up("epoch")
    for namespace in (OURS, THEIRS):
        assert await auth.ensure(namespace, f"p-{namespace}", permissions.keys(namespace))


async def ping(_key: InstanceKey) -> Verdict:
    return Verdict.ALIVE


@pytest.mark.servers
def test_a_user_has_its_keys_and_nothing_else(own_etcd: EtcdServer) -> None:
    """It registers and becomes ready in its own namespace; another's keys it neither reads, watches nor writes."""

    async def case(auth: EtcdAuth) -> None:
        await with_two_users(auth)
        mine, other = store(own_etcd, OURS), store(own_etcd, THEIRS)
        registry = Registry(mine, ping, 1)
        key = InstanceKey(EndpointPath(OURS, "b", "g"), 5)
        view = await registry.watch(OURS, "frontend")
        await view.wait_synced()
        registration = await registry.register(key)
        assert await registration.known_to_all(10)
        assert registration.readiness().ready
        assert view.routable(key.path) == [key]
        for prefix in (f"dynamo/instances/{OURS}/", f"dynamo/clients/{OURS}/", "dynamo/instances/", "dynamo/", "", "a"):
            with pytest.raises(InvalidArgument, match=f"does not let user {THEIRS}"):
                await other.read(prefix or "\0")
        lease = await other.grant(5)
        for name in (f"dynamo/instances/{OURS}/b/g/1", f"dynamo/clients/{OURS}/1", "dynamo/clients/_all/1", EPOCH_KEY):
            with pytest.raises(InvalidArgument, match=f"does not let user {THEIRS}"):
                await other.put(name, b"x", lease)
            with pytest.raises(InvalidArgument, match=f"does not let user {THEIRS}"):
                await other.delete(name)
        with pytest.raises(Exception, match=r"PermissionDenied|permission denied|does not let"):
            await anext(other.watch(f"dynamo/instances/{OURS}/", 1))
        assert (await other.read(EPOCH_KEY)).entries[0].value == b"epoch"
        await registry.stop()
        await mine.close()
        await other.close()

    run(own_etcd, case)


@pytest.mark.servers
def test_everything_may_be_done_twice_or_by_halves(own_etcd: EtcdServer) -> None:
    """A killed operator's half-made user is finished, a half-removed one is removed."""

    async def case(auth: EtcdAuth) -> None:
        await auth._call("auth/user/add", {"name": "root", "password": "of an earlier start"})
        assert not await auth.asks_for_sign_in()
        assert await auth.set_up("one")
        assert await auth.asks_for_sign_in()
        assert not await auth.set_up("two")
        await auth._call("auth/role/add", {"name": OURS})
        await auth._call("auth/user/add", {"name": OURS, "password": f"p-{OURS}"})
        assert await auth.ensure(OURS, f"p-{OURS}", permissions.keys(OURS))
        assert not await auth.ensure(OURS, f"p-{OURS}", permissions.keys(OURS))
        mine = store(own_etcd, OURS)
        assert (await mine.read(EPOCH_KEY)).entries[0].value == b"one"
        await mine.close()
        await auth._call("auth/user/delete", {"name": OURS})
        assert await auth.names() == {"root", OURS}
        await auth.remove(OURS)
        await auth.remove(OURS)
        assert await auth.names() == {"root"}

    run(own_etcd, case)


@pytest.mark.servers
def test_who_came_before_sign_in_has_no_way_in(own_etcd: EtcdServer) -> None:
    """While etcd asked nobody, anybody could make a user with all rights, root's own password included."""

    async def case(auth: EtcdAuth) -> None:
        for name in ("root", "planted", OURS):
            await auth._call("auth/user/add", {"name": name, "password": "planted"})
        await auth._call("auth/role/add", {"name": "root"})
        await auth._call("auth/role/add", {"name": OURS})
        await auth._call("auth/user/grant", {"user": "planted", "role": "root"})
        await auth._call("auth/user/grant", {"user": OURS, "role": "root"})
        assert await auth.set_up("one")
        assert await auth.names() == {"root"}
        async with aiohttp.ClientSession() as session:
            for name in ("root", "planted", OURS):
                with pytest.raises(EtcdError, match="authentication failed"):
                    await EtcdAuth(session, [own_etcd.url], EtcdAdmin(name, "planted")).names()
        assert await auth.ensure(OURS, f"p-{OURS}", permissions.keys(OURS))
        assert await auth._roles_of(OURS) == [OURS]

    run(own_etcd, case)


@pytest.mark.servers
def test_a_token_that_etcd_forgot_is_renewed(own_etcd: EtcdServer) -> None:
    """A restart of etcd ends its tokens."""

    async def case(auth: EtcdAuth) -> None:
        await with_two_users(auth)
        await asyncio.to_thread(restarted, own_etcd)
        assert OURS in await auth.names()

    run(own_etcd, case)


def restarted(server: EtcdServer) -> None:
    server.kill()
    server.start()
    server.wait()


@pytest.mark.servers
def test_refusals_are_sentences_without_secrets(own_etcd: EtcdServer) -> None:
    """A wrong password, a user who may not make users, and an etcd that isn't there."""

    async def case(auth: EtcdAuth) -> None:
        await with_two_users(auth)

    async def refused(auth: EtcdAuth) -> None:
        with pytest.raises(EtcdError, match="authentication failed") as caught:
            await auth.set_up("x")
        assert "hunter2" not in repr(caught.value)
        assert "hunter2" not in repr(auth._admin)

    async def small(auth: EtcdAuth) -> None:
        with pytest.raises(EtcdError, match="permission denied"):
            await auth.names()

    async def away(auth: EtcdAuth) -> None:
        await asyncio.to_thread(own_etcd.kill)
        with pytest.raises(EtcdError, match="does not answer") as caught:
            await auth.names()
        assert caught.value.reply == ""

    run(own_etcd, case)
    run(own_etcd, refused, EtcdAdmin("root", "hunter2"))
    run(own_etcd, small, EtcdAdmin(OURS, f"p-{OURS}"))
    run(own_etcd, away)


def test_the_ranges_are_the_prefixes() -> None:
    """What is sent to etcd covers keys that start with the prefix."""
    from dynamo.operator.credentials.etcd_auth import _permission

    values: list[Any] = [_permission(permission) for permission in permissions.keys("ns")]
    assert [f["permType"] for f in values] == ["READWRITE", "READWRITE", "READ", "READ"]
    assert base64.b64decode(values[0]["range_end"]) == b"dynamo/instances/ns0"


PLATFORM = "dynamo.op"
LLAMA, GONE = Owner("serving", "llama"), Owner("serving", "gone")


def named(owner: Owner, password: str) -> str:
    return user_name(PLATFORM, owner, password, permissions.keys(OURS))


def test_whose_a_user_is() -> None:
    """By its name alone; what others made is nobody's."""
    assert owner_of(PLATFORM, named(LLAMA, "p")) == LLAMA
    assert named(LLAMA, "p") != named(LLAMA, "q")
    assert named(LLAMA, "p") != user_name(PLATFORM, LLAMA, "p", permissions.keys(THEIRS))
    for name in ("root", "admin", "dynamo/other.op/serving/llama/1", "dynamo/dynamo.op/serving/llama", "dynamo//a/b/c"):
        assert owner_of(PLATFORM, name) is None


def test_what_nobody_needs_any_more() -> None:
    """Users of deleted pipelines, and of live ones those that were replaced long enough ago."""
    old, new, gone = (named(o, p) for o, p in ((LLAMA, "1"), (LLAMA, "2"), (GONE, "3")))
    results = ["root", "dynamo/other.op/serving/gone/1", old, new, gone]
    left = Leftovers()
    assert left.orphans(PLATFORM, results, [LLAMA]) == {gone: GONE}
    assert left.replaced(PLATFORM, results, {}, 0.0) == []
    assert left.replaced(PLATFORM, results, {LLAMA: new}, 10.0) == []
    assert left.replaced(PLATFORM, results, {LLAMA: new}, 9.0 + REPLACED_SECONDS) == []
    assert left.replaced(PLATFORM, results, {LLAMA: new}, 10.0 + REPLACED_SECONDS) == [old]
    assert left.replaced(PLATFORM, results, {LLAMA: old}, 10.0 + REPLACED_SECONDS) == []


async def test_an_address_is_shown_without_its_password() -> None:
    """Endpoints may hold one; where nobody listens, the sentence names the host."""
    async with aiohttp.ClientSession() as session:
        auth = EtcdAuth(session, ["http://me:hunter2@127.0.0.1:1"], ROOT)
        with pytest.raises(EtcdError, match=r"etcd at 127\.0\.0\.1:1 does not answer") as caught:
            await auth.names()
        assert "hunter2" not in str(caught.value)
