"""Two tenants and NATS: the hostile one fills its namespace's own, and the other notices nothing; one NATS for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_down
from e2e.cluster.releases import RELEASE, install
from e2e.namespace.namespace import Namespace
from e2e.namespace.namespace_nats import memory, pod, restarts, subjects
from e2e.namespace.pipelines import pipeline
from e2e.namespace.tenants import Tenant, pair
from e2e.traffic.busy import NAME, Note
from e2e.traffic.traffic import traffic

from dynamo.operator.manifests import nats

OWN, MORE = "mine", "more"
READERS = 40
FLOOD_SECONDS = 60.0
GONE_SECONDS = 60
MIB = 1 << 20
FILLED = 200 * MIB
"""Its limit is 512Mi: a NATS with more than that is ended by the kubelet, and then has little again."""
CALM = 32 * MIB


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_a_hostile_tenant_fills_its_own_nats(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Note
) -> None:
    """And the other's is the same pod, with the memory that it had; all its streams are whole."""
    victim, tenant = pair(new_namespace, platform, OWN)
    space = victim.pipeline(NAME)["status"]["namespace"]
    uid, before = pod(victim)["metadata"]["uid"], memory(victim)
    most, calm = 0, before
    with traffic(victim, NAME) as seen:
        tenant.run("hoard", OWN, space, "hoard", str(READERS), str(FLOOD_SECONDS))
        wait_for("it floods", lambda: tenant.runs("hoard"), 120)
        end = time.monotonic() + FLOOD_SECONDS
        while time.monotonic() < end and tenant.runs("hoard"):
            most, calm = max(most, memory(tenant.namespace)), max(calm, memory(victim))
            time.sleep(1.0)
        record_property("the flood", tenant.result("hoard"))
    record_property("MiB of the hostile one's NATS", most // MIB)
    record_property("MiB of the victim's NATS, before and at most", [before // MIB, calm // MIB])
    record_property("restarts of the hostile one's NATS", restarts(tenant.namespace))
    record_property("the victim's streams", str(seen))
    assert most > FILLED or restarts(tenant.namespace)
    assert calm - before < CALM
    assert (pod(victim)["metadata"]["uid"], restarts(victim)) == (uid, 0)
    assert seen.failures == []
    assert seen.complete == seen.sent > 0


@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_a_namespaces_nats_lives_as_long_as_its_pipelines(
    new_namespace: Callable[[], Namespace], platform: Platform
) -> None:
    """A user hears nothing of others in its own NATS; a deleted pipeline leaves it, and the last one takes it along."""
    _, tenant = pair(new_namespace, platform, OWN)
    here = tenant.namespace
    tenant.apply(pipeline(MORE))
    here.wait_ready(MORE)
    other, space = (here.pipeline(name)["status"]["namespace"] for name in (MORE, OWN))
    tenant.run("own", OWN, other, "spy")
    assert tenant.result("own")["tenant"]["heard"] == 0
    assert subjects(here, space)
    here.kubectl("delete", f"dp/{OWN}", "--wait=true")
    wait_for("nobody listens for it", lambda: subjects(here, space) == [], GONE_SECONDS)
    assert subjects(here, other)
    here.kubectl("delete", f"dp/{MORE}", "--wait=true")
    wait_for("its NATS is gone", lambda: here.get("apps/v1/Deployment", nats.NAME) is None, GONE_SECONDS)
    tenant.apply(pipeline(OWN))
    here.wait_ready(OWN)


@contextmanager
def one_for_all(new_namespace: Callable[[], Namespace], platform: Platform) -> Iterator[tuple[Namespace, Tenant]]:
    """An installation with one NATS, for two namespaces alone; nothing of it is left for the next operator."""
    here, victim, other = new_namespace(), new_namespace(), new_namespace()
    installed = Platform(platform.cluster, here.name, RELEASE)
    rest = iter((victim, other))
    with operator_down(platform):
        watched = f"operator.watchNamespaces={{{victim.name},{other.name}}}"
        install(here, "--set", "nats.perNamespace=false", "--set", watched)
        victim, tenant = pair(lambda: next(rest), installed, OWN)
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=nats"
        (service,) = home(installed).list("v1/Service", selector)
        try:
            yield victim, replace(tenant, nats=f"nats://{service['metadata']['name']}.{here.name}.svc:{nats.PORT}")
        finally:
            for namespace, name in ((victim, NAME), (other, OWN)):
                namespace.kubectl("delete", f"dp/{name}", "--wait=true")


@pytest.mark.alone
@pytest.mark.timeout(1200)
def test_one_nats_for_all_tells_a_tenant_nothing(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Note
) -> None:
    """Nobody is let in without a user, and a tenant's own user hears nothing of the other."""
    with one_for_all(new_namespace, platform) as (victim, tenant):
        space = victim.pipeline(NAME)["status"]["namespace"]
        with traffic(victim, NAME) as seen:
            tenant.run("spy", OWN, space, "spy")
            spied = tenant.result("spy")
        record_property("what the intruder got", spied)
        assert {who: got["heard"] for who, got in spied.items()} == {"nobody": None, "tenant": 0}
        assert victim.get("apps/v1/Deployment", nats.NAME) is None
        assert seen.failures == []
        assert seen.complete == seen.sent > 0
