"""What may break under a running operator: it waits, says so, and goes on by itself, in the same process."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.operators import ACCOUNT, HOME, ROLES, SECRETS, role, rules
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import LEASES, PIPELINES, resource_of


def test_the_definition_comes_after_the_operator(world: World) -> None:
    """As when both are applied together."""
    world.remove_crd()
    operator = world.operators.start()
    until("it says what it waits for", lambda: f"waiting for {PIPELINES.plural}" in operator.said())
    world.install_crd()
    world.pipeline()
    world.until_ready()
    assert operator.probe()[0] == 200


def test_the_definition_is_deleted_and_comes_back(world: World) -> None:
    """With it went all pipelines; those that come afterwards are served."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.remove_crd()
    until("kopf has ended", lambda: operator.metric("dynamo_operator_watch_restarts_total") >= 1)
    world.install_crd()
    world.pipeline("second")
    world.until_ready("second")
    until("the first one's children are collected", lambda: not world.children(), 180)
    assert operator.process.poll() is None


@pytest.mark.full
def test_a_right_is_taken_and_given_back(world: World) -> None:
    """The condition says which; the watches that a broken connection ended come back with the right."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    narrow = [rule for rule in rules() if "poddisruptionbudgets" not in rule["resources"]]
    world.admin.ask("PUT", ROLES.path(None, "dynamo-operator"), role(narrow))
    world.pipeline(spec={"components": [{"engine": "mocker", "replicas": 3}]})
    until("the condition says so", lambda: world.condition().get("reason") == "Forbidden")
    assert "poddisruptionbudgets" in world.condition()["message"]
    world.plane.kill_apiserver()
    world.plane.start_apiserver()
    until("it says what it can't watch", lambda: "poddisruptionbudgets" in operator.said(), 120)
    world.admin.ask("PUT", ROLES.path(None, "dynamo-operator"), role(rules()))
    until("it scales", lambda: [s["spec"]["replicas"] for s in world.items(resource_of("StatefulSet"))] == [3], 120)
    world.until_ready()
    name = next(name for kind, name in world.children() if kind == "PodDisruptionBudget")
    world.admin.delete(resource_of("PodDisruptionBudget"), world.namespace, name)
    until("the kind is watched again", lambda: ("PodDisruptionBudget", name) in world.children())
    assert operator.process.poll() is None


@pytest.mark.parametrize("away", [0, pytest.param(15, marks=pytest.mark.full)])
def test_the_api_server_dies_and_comes_back(world: World, note: Note, away: int) -> None:
    """Nothing is written for it. A lease lost by that is won again in the same process."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.settle()
    rest = world.plane.mark()
    world.plane.kill_apiserver()
    time.sleep(away)
    world.plane.start_apiserver()
    back = time.monotonic()
    until("it leads", lambda: renewed(world, back))
    assert not away or "waiting for it" in operator.said()
    back = time.monotonic()
    world.pipeline("second")
    until("the second one's parts are made", lambda: ("Deployment", "second-frontend") in world.children("second"))
    note(f"API server away for {away} s: seconds until a new pipeline has its parts", round(time.monotonic() - back, 1))
    world.until_ready("second")
    assert operator.process.poll() is None
    assert not [write for write in world.writes(rest) if "llama" in write]


def renewed(world: World, since: float) -> bool:
    """Whether the lease was renewed since that moment of our clock."""
    lease = world.admin.get(LEASES, HOME, ACCOUNT)
    text = (lease or {}).get("spec", {}).get("renewTime") or "1970-01-01T00:00:00.000000Z"
    at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")
    return at.timestamp() > time.time() - (time.monotonic() - since)


def test_a_revoked_token_is_replaced_at_once(world: World, note: Note) -> None:
    """The Secret that the token is bound to goes: 401, and the next token is in the file already."""
    operator = world.operators.start()
    world.pipeline()
    world.until_ready()
    world.operators.log_in("second")
    begun = time.monotonic()
    world.admin.delete(SECRETS, HOME, "first")
    until("a 401 was seen", lambda: 'code="401"' in operator.probe("/metrics")[1])
    refused = time.monotonic()
    world.pipeline(spec={"components": [{"engine": "mocker", "replicas": 3}]})
    until("it scales", lambda: [s["spec"]["replicas"] for s in world.items(resource_of("StatefulSet"))] == [3])
    note("seconds from the revocation to the first 401", round(refused - begun, 1))
    note("seconds from the 401 to a served edit", round(time.monotonic() - refused, 1))
    world.until_ready()
    assert "watch of pipelines failed" not in operator.said()
    assert operator.process.poll() is None
