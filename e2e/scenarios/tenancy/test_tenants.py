"""Two tenants on the platform as it is installed by default, one of them hostile: the other one's requests go on."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector
from e2e.namespace import namespace_nats
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import pipeline, workers
from e2e.namespace.tenants import on_stage, pair
from e2e.traffic.busy import NAME, Note, mocker, serve
from e2e.traffic.traffic import Seen, traffic
from tests.operator.credentials import attacks
from tests.operator.credentials.attacks import came_true

OWN = "mine"
PHASE_SECONDS = 15.0
ROUNDS = 2
FILL_SECONDS = 300.0
ROOM_SECONDS = 120.0
BAR = 1.10
"""What the median of a request's time may rise to under a flood, on a machine that does nothing else."""
MARGIN = 1.5
"""What is asserted: two cores carry the cluster, the flood and the other tests' clusters at once."""


@pytest.mark.alone
def test_a_hostile_tenant_gets_at_nothing(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Note
) -> None:
    """By Kubernetes, by spec.namespace, by pods without and with its credentials, by etcd's ways around rights."""
    victim, tenant = pair(new_namespace, platform, OWN)
    space = victim.pipeline(NAME)["status"]["namespace"]
    with traffic(victim, NAME) as seen:
        stranger = replace(tenant, nats=namespace_nats.url(victim))
        stranger.run("spy", OWN, space, "spy")
        for words in (
            ("get", "secrets", "-n", victim.name),
            ("get", f"secret/{NAME}-credentials", "-n", victim.name),
            ("get", "secrets", "-n", platform.namespace),
            ("get", "dp", "-n", victim.name),
            ("label", f"dp/{NAME}", "a=b", "-n", victim.name),
            ("delete", "pods", "--all", "-n", victim.name),
            ("get", "pods", "-n", platform.namespace),
        ):
            assert not tenant.may(*words), words
        tenant.apply(pipeline("thief", namespace=space))
        wait_for("the thief is refused", lambda: tenant.namespace.condition("thief", "Stalled"), 60)
        refused = tenant.namespace.condition("thief", "Stalled")
        assert refused["reason"] == "InvalidSpec"
        assert refused["message"].startswith(f"spec.namespace: must begin with '{tenant.namespace.name}_'")
        assert tenant.namespace.list("v1/Pod", "dynamo.dev/pipeline=thief") == []
        with on_stage(platform, victim, tenant.namespace, NAME, OWN) as stage:
            found = came_true(stage, attacks.KEYS + attacks.SERVER + attacks.ALARMS)
            assert [name for name, yes in found.items() if yes] == []
            assert stage.seen() == attacks.RECORD
        spied = tenant.result("spy")
    record_property("what the intruder got", spied)
    assert {who: got["heard"] for who, got in spied.items()} == {"nobody": None, "tenant": None}
    for got in spied.values():
        assert min(got["etcd"].values()) >= 400, got
    record_property("the victim's streams", str(seen))
    assert seen.failures == []
    assert seen.complete == seen.sent > 0
    victim.wait_ready(NAME)


@pytest.mark.full
@pytest.mark.alone
def test_a_flood_delays_nobody(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Note
) -> None:
    """In its own subjects and keys, with what CPU a tenant is given: the other's streams are whole, and as fast."""
    victim, tenant = pair(new_namespace, platform, OWN)
    space = victim.pipeline(NAME)["status"]["namespace"]
    quiet, flooded = Seen(), Seen()
    for number in range(ROUNDS):
        measure(victim, quiet)
        flood = f"flood-{number}"
        tenant.run(flood, OWN, space, "flood", str(PHASE_SECONDS + 30))
        wait_for("it floods", lambda name=flood: tenant.floods(name), 120)  # type: ignore[misc]
        measure(victim, flooded)
        assert tenant.runs(flood), "the flood ended before the victim was measured"
        record_property(f"flood {number}", tenant.result(flood))
    for what, seen in (("quiet", quiet), ("flooded", flooded)):
        record_property(
            f"{what}", f"{seen}; median {median(seen.seconds):.3f} s, first token {median(seen.first):.3f} s"
        )
        assert seen.failures == []
        assert seen.complete == seen.sent > 0
    ratio = median(flooded.seconds) / median(quiet.seconds)
    record_property("median of a stream's time, flooded to quiet", f"{ratio:.3f} (the bar is {BAR})")
    assert ratio < MARGIN


@pytest.mark.full
@pytest.mark.alone
def test_a_full_etcd_stops_nobody(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Note
) -> None:
    """The hostile one fills it: the other's streams are whole, the operator makes room, and a new worker registers."""
    victim, tenant = pair(new_namespace, platform, OWN)
    space = victim.pipeline(NAME)["status"]["namespace"]
    operator = (
        f"deployment/{home(platform).list('apps/v1/Deployment', operator_selector(platform))[0]['metadata']['name']}"
    )

    def times() -> int:
        """How often the operator has said that it made room."""
        return home(platform).kubectl("logs", operator).count("etcd was full")

    before, began = times(), time.monotonic()
    with traffic(victim, NAME) as seen:
        tenant.run("fill", OWN, space, "fill")
        found = tenant.result("fill", FILL_SECONDS)
        record_property("the fill", f"{found} in {time.monotonic() - began:.0f} s")
        assert found["status"] == 429
        began = time.monotonic()
        wait_for("room is made", lambda: times() > before, ROOM_SECONDS)
        record_property("seconds until there was room again", round(time.monotonic() - began, 1))
        serve(victim, mocker(replicas=3), frontend={"replicas": 2})
        assert len(workers(victim, NAME)) == 3
    record_property("the victim's streams", str(seen))
    assert seen.failures == []
    assert seen.complete == seen.sent > 0


def measure(victim: Namespace, into: Seen) -> None:
    """Streams for a while, added to what was seen before."""
    with traffic(victim, NAME) as seen:
        time.sleep(PHASE_SECONDS)
    into.add(seen)


def median(values: list[float]) -> float:
    return statistics.median(values)
