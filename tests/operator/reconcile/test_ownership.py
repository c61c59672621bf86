"""Two installations for one pipeline: one serves it, the other stands back, and follows when the first is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.apiserver import ApiServer, refusal
from tests.operator.pipelines import SMALLEST, body
from tests.operator.reconcile.test_reconciler import KEY, NOW, SETTINGS

from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Fence, Installation
from dynamo.operator.kube.resources import LEASES, Key, resource_of
from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.reconcile.ownership import REASON, OtherInstallations, OwnershipResolver, claimed_by
from dynamo.operator.reconcile.reconciler import Outcome, Reconciler
from dynamo.operator.settings import Settings

PATIENCE = 120.0
OTHER = ClusterSettings("other/frontend:1", {"default": "other/worker:1"})
FIRST, SECOND = Installation("one", "lease"), Installation("two", "lease")
Object = dict[str, Any]


@pytest.mark.parametrize("one", [FIRST, Installation("one", "lease", elects=False)])
def test_an_installation_is_written_and_read(one: Installation) -> None:
    """With and without a lease it is the same one; in another namespace or by another name it isn't."""
    assert Installation.of(str(one)) == one
    assert one.is_same(FIRST)
    assert not one.is_same(SECOND)
    assert not one.is_same(Installation("one", "other"))


@pytest.mark.parametrize(
    "text", ["x", "../a/b", "a/../../secrets", "a/b/c", "a/b?watch=1", "A/b", "a/b\n", "a" * 300 + "/b", "/"]
)
def test_what_cannot_be_a_name_claims_nothing(text: str) -> None:
    """Whoever may write a status must not choose what we ask the API server for."""
    assert claimed_by({"operator": text}) is None


def test_nobody_claims_what_has_no_status() -> None:
    """Nor one that an operator wrote which didn't say so yet."""
    assert claimed_by({}) is None
    assert claimed_by({"operator": ""}) is None
    assert claimed_by({"operator": "one/lease"}) == FIRST


def lease(holder: str, renewed: str) -> Object:
    return {"spec": {"holderIdentity": holder, "renewTime": renewed}}


def test_a_lease_that_is_renewed_keeps_its_pipelines() -> None:
    """However old the times are that stand in it: only what changes between our looks counts."""
    others = OtherInstallations(PATIENCE)
    for now in range(0, 1000, 30):
        others.observe_lease(FIRST, lease("a", str(now)), now)
        assert not others.is_gone(FIRST, KEY, (1, 1), now)


@pytest.mark.parametrize("left", [lease("a", "then"), lease("", "then"), None])
def test_a_lease_that_nobody_renews_is_gone_after_a_while(left: Object | None) -> None:
    """Killed, ended, or removed with its namespace; and not before."""
    others = OtherInstallations(PATIENCE)
    others.observe_lease(FIRST, left, 0.0)
    others.observe_lease(FIRST, left, PATIENCE - 1)
    assert not others.is_gone(FIRST, KEY, (1, 1), PATIENCE - 1)
    assert others.is_gone(FIRST, KEY, (1, 1), PATIENCE)
    others.observe_lease(FIRST, lease("b", "now"), PATIENCE)
    assert not others.is_gone(FIRST, KEY, (1, 1), PATIENCE)


def test_what_cannot_be_read_says_nothing() -> None:
    """Without the right to read leases only an edit that nobody observes tells."""
    others = OtherInstallations(PATIENCE)
    others.observe_lease(FIRST, lease("a", "then"), 0.0)
    others.lease_unreadable(FIRST, 1.0)
    assert not others.is_gone(FIRST, KEY, (1, 1), 10 * PATIENCE)
    assert not others.is_gone(FIRST, KEY, (2, 1), 10 * PATIENCE)
    assert not others.is_gone(FIRST, KEY, (3, 1), 11 * PATIENCE - 1), "another edit"
    assert others.is_gone(FIRST, KEY, (3, 1), 12 * PATIENCE)
    assert not others.is_gone(FIRST, KEY, (3, 3), 12 * PATIENCE)
    assert not others.is_gone(FIRST, Key("serving", "other"), (3, 1), 12 * PATIENCE)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60))
def test_a_lease_is_read_seldom(gaps: list[float]) -> None:
    """At most every fifteen seconds, however many pipelines ask; never where nobody renews one."""
    others, now, asked = OtherInstallations(PATIENCE), 0.0, list[float]()
    for gap in gaps:
        now += gap
        if others.is_due(FIRST, now):
            others.lease_unreadable(FIRST, now)
            asked.append(now)
        assert not others.is_due(FIRST._replace(elects=False), now)
    assert all(later - earlier >= PATIENCE / 8 for earlier, later in pairwise(asked))


class Two:
    """Two reconcilers of different installations and images before one server; `now` is their clock."""

    def __init__(self, server: ApiServer, api: Api) -> None:
        self.server, self.now = server, 0.0
        self.first, self.second = self._one(api, FIRST), self._one(api, SECOND)
        self._api = api

    def upgraded(self) -> Reconciler:
        """The first installation's next process."""
        return self._one(self._api, FIRST)

    def _one(self, api: Api, us: Installation) -> Reconciler:
        settings = _settings(us)
        ownership = OwnershipResolver(api, us, "pod", OtherInstallations(PATIENCE), lambda: self.now)
        return Reconciler(api, settings, lambda: NOW, ownership=ownership)

    async def settle(self, *reconciler: Reconciler) -> None:
        """All of them look until nobody writes any more; a reconcile that fails is repeated."""
        quiet = 0
        for _ in range(60):
            outcomes = [await one.reconcile(KEY) for one in reconciler]
            self.server.play()
            quiet = 0 if any(outcome.writes or outcome.failed for outcome in outcomes) else quiet + 1
            if quiet == 2:
                return
        raise AssertionError(f"no rest: {self.server.writes[-6:]}")

    @property
    def status(self) -> Object:
        found: Object = self.server.one("DynamoPipeline", "llama")["status"]
        return found

    def images(self) -> set[str]:
        pods = [self.server.one(k, n) for k in ("StatefulSet", "Deployment") for n in self.server.names(k)]
        return {pod["spec"]["template"]["spec"]["containers"][0]["image"].partition("/")[0] for pod in pods}

    def renew(self, who: Installation) -> None:
        spec = {"holderIdentity": "pod", "renewTime": str(self.now)}
        self.server.put(
            {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": who.name}, "spec": spec},
            who.namespace,
        )


def _settings(us: Installation) -> Settings:
    cluster = OTHER if us == SECOND else SETTINGS.cluster
    return replace(SETTINGS, cluster=cluster, own_namespace=us.namespace, name=us.name, lease=us.name)


def two(case: Callable[[Two], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ApiServer() as server, aiohttp.ClientSession() as session:
            server.put(body(SMALLEST))
            await case(Two(server, Api(session, server.url)))

    asyncio.run(main())


def test_the_second_one_writes_nothing() -> None:
    """No child and no status, whatever it would have made of them; users hear of it once."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        both.renew(FIRST)
        assert both.status["operator"] == str(FIRST)
        written = len(both.server.writes)
        for _ in range(5):
            assert await both.second.reconcile(KEY) == Outcome(seconds=PATIENCE / 4)
            assert await both.first.reconcile(KEY) == Outcome()
        assert [path for _, path in both.server.writes[written:]] == ["/api/v1/namespaces/serving/events"]
        (event,) = [one for one in both.server.events if one["reason"] == REASON]
        assert str(FIRST) in event["message"]
        assert str(SECOND) in event["message"]

    two(case)


@pytest.mark.parametrize("seed", range(6))
def test_who_begins_together_ends_with_one(seed: int) -> None:
    """Both see a new pipeline at the same moment: one serves it in the end, and nothing of the other's is left."""

    async def case(both: Two) -> None:
        both.renew(FIRST)
        both.renew(SECOND)
        reconciler = (both.first, both.second) if seed % 2 else (both.second, both.first)
        for _ in range(1 + seed // 2):
            await asyncio.gather(*(one.reconcile(KEY) for one in reconciler), return_exceptions=True)
        await both.settle(both.first, both.second)
        assert len(both.images()) == 1
        winner = SECOND if both.images() == {"other"} else FIRST
        assert both.status["operator"] == str(winner)
        assert next(c for c in both.status["conditions"] if c["type"] == "Ready")["status"] == "True"

    two(case)


def test_the_second_one_follows_when_the_first_is_gone() -> None:
    """Its name comes first, then its children; the first one, back again, stands back."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        both.renew(FIRST)
        await both.second.reconcile(KEY)
        both.now = PATIENCE - 1
        assert (await both.second.reconcile(KEY)).writes == 0
        both.now = 2 * PATIENCE
        written = len(both.server.writes)
        await both.settle(both.second)
        assert both.server.writes[written][1].endswith("/llama/status")
        assert (both.status["operator"], both.images()) == (str(SECOND), {"other"})
        both.renew(SECOND)
        written = len(both.server.writes)
        assert (await both.first.reconcile(KEY)).writes == 0
        assert not [path for _, path in both.server.writes[written:] if "/events" not in path]

    two(case)


def test_of_two_that_follow_only_one_does() -> None:
    """A status is written over the one that was read: whoever is slower looks again."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        both.server.fault = lambda method, path: (
            refusal(409, "the object has been modified", "Conflict") if path.endswith("/status") else None
        )
        await both.second.reconcile(KEY)
        both.now = PATIENCE
        await both.second.reconcile(KEY)
        both.now = 2 * PATIENCE
        written = len(both.server.writes)
        assert (await both.second.reconcile(KEY)).failed
        assert both.server.writes[written:] == []
        assert both.status["operator"] == str(FIRST)

    two(case)


def test_without_the_right_to_read_leases_it_stands_back() -> None:
    """Until an edit stays unobserved."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        both.server.fault = lambda method, path: refusal(403, "leases is forbidden") if "leases" in path else None
        await both.second.reconcile(KEY)
        both.now = 10 * PATIENCE
        assert (await both.second.reconcile(KEY)).writes == 0
        edited = both.server.one("DynamoPipeline", "llama")
        edited["metadata"]["generation"] += 1
        both.server.put(edited)
        assert (await both.second.reconcile(KEY)).writes == 0
        both.now = 11 * PATIENCE
        await both.settle(both.second)
        assert both.status["operator"] == str(SECOND)

    two(case)


def test_a_status_that_names_nobody_is_claimed() -> None:
    """By an operator that was upgraded: one write, no child's."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        found = both.server.one("DynamoPipeline", "llama")
        both.server.put({**found, "status": {k: v for k, v in found["status"].items() if k != "operator"}})
        written = len(both.server.writes)
        await both.settle(both.upgraded())
        assert [path.rpartition("/")[2] for _, path in both.server.writes[written:]] == ["status"]

    two(case)


def test_a_definition_that_drops_the_name() -> None:
    """An older CRD has no place for it: it is tried once, not at each reconcile."""

    async def case(both: Two) -> None:
        await both.settle(both.first)
        found = both.server.one("DynamoPipeline", "llama")
        dropped = {**found, "status": {k: v for k, v in found["status"].items() if k != "operator"}}
        reconciler = [both.first, both.first, both.first]
        outcomes = []
        for one in reconciler:
            both.server.put(dropped)
            outcomes.append(await one.reconcile(KEY))
        assert [outcome.writes for outcome in outcomes] == [0, 0, 0]

    two(case)


async def test_a_leader_that_slept_writes_nothing_but_its_lease() -> None:
    """What it was about to write is refused before it is sent; reads and the next lease aren't."""
    leads = True
    async with ApiServer() as server, aiohttp.ClientSession(connector=Fence(lambda: leads)) as session:
        api = Api(session, server.url)
        service: Object = {"kind": "Service", "metadata": {"namespace": "n", "name": "s"}}
        await api.apply(resource_of("Service"), service, None)
        leads = False
        for write in (
            api.apply(resource_of("Service"), service, None),
            api.delete(resource_of("Service"), "n", "s", ("uid", "")),
            api.resize(resource_of("StatefulSet"), "n", "s", ("uid", ""), 1),
        ):
            with pytest.raises(ApiError, match="another replica may be the leader"):
                await write
        assert await api.get(resource_of("Service"), "n", "s")
        lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": {"name": "l"}, "spec": {}}
        await api.create(LEASES, "n", lease)
        assert [path.rpartition("/")[2] for _, path in server.writes] == ["s", "leases"]
