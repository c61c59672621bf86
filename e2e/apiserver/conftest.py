"""A control plane for all tests here, operators and a namespace for each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.apiserver.lanes import Lanes
from e2e.apiserver.lives import reconcilers
from e2e.apiserver.plane import Plane
from e2e.apiserver.proxy import Proxy, serving
from e2e.apiserver.story import Story, lived
from e2e.apiserver.world import World, namespace_of, new_world
from e2e.kind.places import Places

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    found = Plane(Places.of(os.environ).bin, tmp_path_factory.mktemp("plane"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def world(plane: Plane, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of its own, the CRD and the chart's rights; no operator runs yet."""
    with new_world(plane, namespace_of(request.node)) as found:
        yield found


@pytest.fixture(scope="session")
def shared_proxy(plane: Plane) -> Iterator[Proxy]:
    """Between operators and the API server."""
    with serving(plane.server) as found:
        yield found


@pytest.fixture
def proxy(shared_proxy: Proxy) -> Iterator[Proxy]:
    """The same for all tests, each with namespaces of its own; what is broken for all namespaces is put right."""
    yield shared_proxy
    shared_proxy.faults.shut, shared_proxy.faults.stale = {}, None


@pytest.fixture(scope="session")
def whole(plane: Plane, shared_proxy: Proxy) -> Story:
    """What a pipeline lives through that nothing befalls; with it all others are compared."""
    with new_world(plane, "whole") as world:
        lanes = Lanes(world, shared_proxy.faults, ["whole"])
        with reconcilers(lanes, shared_proxy.url, world.operators.token):
            return lived(lanes)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Watches need minutes to notice some things."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))
