"""HTTPRoutes on a cluster without the Gateway API, with it, and without it again: the operator just goes on."""

from __future__ import annotations

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.plane import CRDS
from e2e.apiserver.world import World
from e2e.manifests.server import httproutes
from tests.operator.pipelines import ROUTED, SMALLEST

from dynamo.operator.kube.resources import ROUTES

SOON = 150.0
"""A kind that is missing is asked for again after a minute."""
URL = "https://llama.example.org"


@pytest.mark.full
def test_the_gateway_api_comes_and_goes(world: World) -> None:
    """Without it everything else is made and the condition says what to do; nothing has to be started again."""
    operator = world.operators.start()
    world.pipeline(spec=ROUTED)
    until("it says what is missing", lambda: "install the Gateway API" in world.condition("Stalled").get("message", ""))
    assert ("Deployment", "llama-frontend") in world.children()
    world.admin.apply(CRDS, httproutes())
    until("the route is there", lambda: _route(world) is not None, SOON)
    until("nothing is stalled", lambda: world.ready() and not world.condition("Stalled"), SOON)
    assert world.live()["status"]["url"] == URL
    world.pipeline(spec={**SMALLEST, "frontend": {"replicas": 1}})
    until("the route is gone", lambda: _route(world) is None)
    until("the url is the Service's", lambda: world.live()["status"]["url"] != URL)
    world.pipeline(spec=ROUTED)
    until("it is back", lambda: _route(world) is not None, SOON)
    world.admin.delete(CRDS, None, f"{ROUTES.plural}.{ROUTES.group}")
    world.pipeline("second")
    world.until_ready("second")
    assert operator.process.poll() is None
    assert operator.metric("dynamo_operator_watch_restarts_total") == 0


def _route(world: World) -> object:
    if world.admin.code("GET", ROUTES.path(world.namespace)) == 404:
        return None
    return world.admin.get(ROUTES, world.namespace, "llama-frontend")
