"""What a store must do, over memory and over a real etcd."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from tests.fixtures_etcd import EtcdServer

from dynamo.runtime.backends import lone_world
from dynamo.runtime.discovery.etcd import EtcdStore
from dynamo.runtime.discovery.memory import MemoryStore, StoreWorld
from dynamo.runtime.discovery.store import Change, Compacted, Entry, LeaseLost, Store

_prefixes = itertools.count()


class Subject:
    """An adapter under test and how to make its server compact."""

    def __init__(self, make: Callable[[], Store], compact: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        self.make, self.compact = make, compact
        self.prefix = f"contract/{next(_prefixes)}/"

    def run(self, case: Callable[[Store, str], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            store = self.make()
            await store.connect()
            try:
                async with asyncio.timeout(30):
                    await case(store, self.prefix)
            finally:
                await store.close()

        asyncio.run(main())


def _memory() -> Subject:
    world = StoreWorld()

    async def compact(_revision: int) -> None:
        world.compact()

    return Subject(lambda: MemoryStore(world), compact)


def _etcd(server: EtcdServer) -> Subject:
    async def compact(revision: int) -> None:
        process = await asyncio.create_subprocess_exec(
            "etcdctl", "--endpoints", server.url, "compact", str(revision), stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0

    return Subject(lambda: EtcdStore(server.config()), compact)


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.servers)])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "memory":
        return _memory()
    return _etcd(request.getfixturevalue("etcd_server"))


async def first(batches: AsyncIterator[list[Change]]) -> list[Change]:
    async with asyncio.timeout(10):
        return await anext(batches)


def test_put_and_read(subject: Subject) -> None:
    """What was written is read back, in order of the keys, each with the revision of its last write."""

    async def case(store: Store, p: str) -> None:
        b = await store.put(p + "b", b"1")
        a = await store.put(p + "a", b"2")
        assert a == b + 1
        revision, entries = await store.read(p)
        assert revision >= a
        assert entries == [Entry(p + "a", b"2", a), Entry(p + "b", b"1", b)]

    subject.run(case)


def test_read_of_nothing(subject: Subject) -> None:
    """A prefix without keys is an empty list at a revision that a watch can start from."""

    async def case(store: Store, p: str) -> None:
        revision, entries = await store.read(p)
        assert entries == []
        assert revision >= 1

    subject.run(case)


def test_read_keys(subject: Subject) -> None:
    """Exactly those that were asked for and are there, in that order; also more than one transaction takes."""

    async def case(store: Store, p: str) -> None:
        at = {name: await store.put(p + name, name.encode()) for name in ("b", "bb", "a")}
        revision, entries = await store.read_keys([p + "b", p + "absent", p + "a"])
        assert revision >= at["a"]
        assert entries == [Entry(p + "b", b"b", at["b"]), Entry(p + "a", b"a", at["a"])]
        many = [f"{p}absent{number}" for number in range(250)]
        assert (await store.read_keys([*many, p + "bb"])).entries == [Entry(p + "bb", b"bb", at["bb"])]
        assert (await store.read_keys(many)).entries == []

    subject.run(case)


def test_put_if_absent(subject: Subject) -> None:
    """Creating a key succeeds once; the second caller learns what is there."""

    async def case(store: Store, p: str) -> None:
        written, revision, value = await store.put_if(p + "k", b"first", None)
        assert (written, value) == (True, None)
        assert await store.put_if(p + "k", b"second", None) == (False, revision, b"first")
        assert (await store.read(p)).entries == [Entry(p + "k", b"first", revision)]

    subject.run(case)


def test_put_if_equal(subject: Subject) -> None:
    """A key is overwritten only where it holds what the caller expects."""

    async def case(store: Store, p: str) -> None:
        assert (await store.put_if(p + "k", b"x", b"absent"))[0] is False
        await store.put(p + "k", b"old")
        assert (await store.put_if(p + "k", b"new", b"other"))[::2] == (False, b"old")
        assert (await store.put_if(p + "k", b"new", b"old"))[::2] == (True, b"old")
        assert [e.value for e in (await store.read(p)).entries] == [b"new"]

    subject.run(case)


def test_delete(subject: Subject) -> None:
    """A deleted key is gone, and deleting it again is no error."""

    async def case(store: Store, p: str) -> None:
        await store.put(p + "k", b"x")
        await store.delete(p + "k")
        await store.delete(p + "k")
        assert (await store.read(p)).entries == []

    subject.run(case)


def test_delete_is_exact(subject: Subject) -> None:
    """Deleting a key leaves longer keys alone."""

    async def case(store: Store, p: str) -> None:
        await store.put(p + "k", b"x")
        await store.put(p + "k2", b"y")
        await store.delete(p + "k")
        assert [e.key for e in (await store.read(p)).entries] == [p + "k2"]

    subject.run(case)


def test_watch_from_a_list(subject: Subject) -> None:
    """A watch from a list's revision + 1 brings every later write and deletion, once and in order."""

    async def case(store: Store, p: str) -> None:
        await store.put(p + "before", b"0")
        revision, _ = await store.read(p)
        record = await store.put(p + "k", b"1")
        async with contextlib.aclosing(store.watch(p, revision + 1)) as batches:  # type: ignore[type-var]
            seen = await first(batches)
            two = await store.put(p + "k", b"2")
            await store.delete(p + "k")
            while len(seen) < 3:
                seen += await first(batches)
        assert seen == [Change(p + "k", b"1", record), Change(p + "k", b"2", two), Change(p + "k", None, two + 1)]

    subject.run(case)


def test_watch_sees_its_prefix_only(subject: Subject) -> None:
    """Other keys don't reach a watch."""

    async def case(store: Store, p: str) -> None:
        revision, _ = await store.read(p)
        async with contextlib.aclosing(store.watch(p + "in/", revision + 1)) as batches:  # type: ignore[type-var]
            await store.put(p + "out", b"x")
            await store.put(p + "in/k", b"y")
            assert [c.key for c in await first(batches)] == [p + "in/k"]

    subject.run(case)


def test_watch_across_two_stores(subject: Subject) -> None:
    """What one process writes, another one's watch sees."""

    async def case(store: Store, p: str) -> None:
        other = subject.make()
        await other.connect()
        try:
            revision, _ = await store.read(p)
            async with contextlib.aclosing(store.watch(p, revision + 1)) as batches:  # type: ignore[type-var]
                await other.put(p + "k", b"hello")
                assert [c.value for c in await first(batches)] == [b"hello"]
        finally:
            await other.close()

    subject.run(case)


def test_watch_from_a_compacted_revision(subject: Subject) -> None:
    """A watch from a revision that the store has forgotten says so, instead of leaving changes out."""

    async def case(store: Store, p: str) -> None:
        old = await store.put(p + "k", b"1")
        last = await store.put(p + "k", b"2")
        await subject.compact(last)
        async with contextlib.aclosing(store.watch(p, old)) as batches:  # type: ignore[type-var]
            with pytest.raises(Compacted):
                await first(batches)

    subject.run(case)


def test_watch_from_the_future(subject: Subject) -> None:
    """A watch from a revision that the store has yet to reach is refused: that store was replaced."""

    async def case(store: Store, p: str) -> None:
        revision, _ = await store.read(p)
        async with contextlib.aclosing(store.watch(p, revision + 1000)) as batches:  # type: ignore[type-var]
            with pytest.raises(Compacted):
                await first(batches)

    subject.run(case)


def test_keys_die_with_their_lease(subject: Subject) -> None:
    """Giving a lease back deletes its keys, in one revision that a watch sees."""

    async def case(store: Store, p: str) -> None:
        lease = await store.grant(5)
        await store.put(p + "stays", b"x")
        await store.put(p + "a", b"1", lease)
        last = await store.put(p + "b", b"2", lease)
        async with contextlib.aclosing(store.watch(p, last + 1)) as batches:  # type: ignore[type-var]
            await lease.revoke()
            gone = await first(batches)
        assert sorted(gone) == [Change(p + "a", None, last + 1), Change(p + "b", None, last + 1)]
        assert [e.key for e in (await store.read(p)).entries] == [p + "stays"]
        assert not lease.alive or not await lease.keep_alive()

    subject.run(case)


def test_lease_is_kept_alive(subject: Subject) -> None:
    """Renewing says whether the lease still exists, and giving it back twice is no error."""

    async def case(store: Store, p: str) -> None:
        lease = await store.grant(5)
        assert lease.alive
        assert await lease.keep_alive() is True
        await lease.revoke()
        assert await lease.keep_alive() is False
        assert lease.alive is False
        await lease.revoke()

    subject.run(case)


def test_leases_are_renewed_side_by_side(subject: Subject) -> None:
    """Each hears of its own, whatever the others' answers are; one that was given up in the middle harms none."""

    async def case(store: Store, p: str) -> None:
        leases = [await store.grant(5) for _ in range(6)]
        for lease in leases[::2]:
            await lease.revoke()
        for _ in range(3):
            answers = await asyncio.gather(*(lease.keep_alive() for lease in leases))
            assert answers == [False, True] * 3
            given_up = asyncio.ensure_future(leases[1].keep_alive())
            await asyncio.sleep(0)
            given_up.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await given_up

    subject.run(case)


def test_writing_under_a_lost_lease(subject: Subject) -> None:
    """A write under a lease that is gone is refused and leaves no key behind."""

    async def case(store: Store, p: str) -> None:
        lease = await store.grant(5)
        await lease.revoke()
        with pytest.raises(LeaseLost):
            await store.put(p + "k", b"x", lease)
        with pytest.raises(LeaseLost):
            await store.put_if(p + "k", b"x", None, lease)
        assert (await store.read(p)).entries == []

    subject.run(case)


def test_lease_expires(subject: Subject) -> None:
    """A lease that nobody renews ends, and takes its keys along."""

    async def case(store: Store, p: str) -> None:
        lease = await store.grant(1)
        last = await store.put(p + "k", b"x", lease)
        async with contextlib.aclosing(store.watch(p, last + 1)) as batches:  # type: ignore[type-var]
            assert [(c.key, c.value) for c in await first(batches)] == [(p + "k", None)]
        assert await lease.keep_alive() is False

    subject.run(case)


def test_a_key_can_move_to_another_lease(subject: Subject) -> None:
    """Overwriting a key under a new lease saves it from the old one's end."""

    async def case(store: Store, p: str) -> None:
        old, new = await store.grant(5), await store.grant(5)
        await store.put(p + "k", b"x", old)
        await store.put_if(p + "k", b"y", b"x", new)
        await old.revoke()
        assert [e.value for e in (await store.read(p)).entries] == [b"y"]
        await new.revoke()
        assert (await store.read(p)).entries == []

    subject.run(case)


async def test_leases_of_a_lone_runtime_end_only_with_it() -> None:
    """A loop that stood still while a model was loaded loses nothing; in a shared world it does."""
    clock = ManualClock()
    for ends, left in ((True, 0), (False, 1)):
        world = StoreWorld(clock, leases_end=ends)
        store = MemoryStore(world)
        lease = await store.grant(5.0)
        await store.put("key", b"value", lease)
        clock.now += 100.0
        assert len((await store.read("key")).entries) == left
        assert await lease.keep_alive() is not ends
        await lease.revoke()
        assert (await store.read("key")).entries == []


def test_a_process_of_its_own_has_such_leases() -> None:
    """What `dynamo-run` and DYN_DISCOVERY_BACKEND=mem stand on."""
    clock = ManualClock()
    world = lone_world()
    world.store.clock = clock
    lease = world.store.grant(5.0)
    clock.now += 100.0
    world.store.expire()
    assert world.store.renew(lease)
    assert world.store.next_expiry() is None


class ManualClock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
