"""An API server that fails for good at one thing, and a watch that stands still: the status tells the truth."""

from __future__ import annotations

import time

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.faults import Refusal, Told
from e2e.apiserver.proxy import Proxy
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.errors import TRIES
from dynamo.operator.kube.resources import PODS, resource_of

FULL = Refusal(500, "InternalError", "Internal error occurred: failed to allocate a serviceIP: range is full")
TOLD_SECONDS = 60.0
"""Some seconds on a machine with nothing else to do."""
STILL_SECONDS = 300.0
"""Longer than anything here waits."""
SEEN_SECONDS = 60.0
"""A reconcile comes after 30 s, and asks; two of them, since the first may have had news."""


def test_writes_that_fail_for_good(world: World, proxy: Proxy, note: Note) -> None:
    """As when no service address is left: after a few tries the status has the server's words; mended, it is served."""
    script = proxy.faults.script(world.namespace)
    script.always = {"services": FULL}
    operator = world.operators.through(proxy.url, "operator", {"namespaces": [world.namespace]})
    world.pipeline()
    began = time.monotonic()
    until("the status says so", lambda: world.condition().get("reason") == "ApiServerFailing", TOLD_SECONDS)
    tries = len([write for write in script.writes if "services" in write])
    note("writes that failed until then", tries)
    assert tries <= TRIES + 1, "the status waits for so many failures; the reconcile after them may have begun"
    note("seconds until the status has the API server's words", round(time.monotonic() - began, 1))
    for kind in ("Ready", "Reconciling"):
        assert world.condition(kind)["message"] == f"Service llama-frontend: {FULL.message} (HTTP 500)"
    assert world.condition("Stalled") == {}
    until("the rest is made", lambda: {"Deployment", "StatefulSet"} <= {kind for kind, _ in world.children()})
    tries = len([write for write in script.writes if "services" in write])
    time.sleep(10)
    assert len([write for write in script.writes if "services" in write]) <= tries + 3, "later each time"
    script.always = {}
    world.until_ready()
    assert world.condition("Reconciling") == {}
    assert operator.defects() == []


@pytest.mark.full
def test_a_watch_that_stands_still(world: World, proxy: Proxy, note: Note) -> None:
    """No pod is told of any more: the status finds out that they are ready, and then the watch is begun anew."""
    script = proxy.faults.script(world.namespace)
    script.hold = Told(PODS.plural, "MODIFIED", 1), STILL_SECONDS
    operator = world.operators.through(proxy.url, "operator", {"namespaces": [world.namespace]})
    world.pipeline()
    began = time.monotonic()
    until("it is ready", lambda: world.ready(), SEEN_SECONDS)
    note("seconds until Ready with a watch of pods that stands still", round(time.monotonic() - began, 1))
    until("the watch is begun anew", lambda: "has stalled; restarting" in operator.said(), 20)
    (name,) = [item["metadata"]["name"] for item in world.items(resource_of("StatefulSet"))]
    world.admin.delete(PODS, world.namespace, f"{name}-0")
    until("the new watch tells", lambda: world.condition()["status"] == "False", 10)
    until("and again", lambda: world.ready(), 20)
    assert operator.defects() == []
