"""One API server for all tests here, with pipelines and HTTPRoutes; a namespace for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
from e2e.kind.places import Places
from e2e.manifests.server import Server, httproutes

from dynamo.operator.kube.resources import ROUTES


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Running, with everything that a pipeline's objects need to be known."""
    found = Server(Places.of(os.environ).bin, tmp_path_factory.mktemp("server"))
    try:
        found.start()
        found.install_ours()
        found.install(httproutes(), ROUTES)
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def new_namespace(server: Server) -> Callable[[], str]:
    """A namespace that nobody had before."""
    numbers = itertools.count(1)
    return lambda: server.namespace(f"manifests-{next(numbers)}")


@pytest.fixture
def namespace(new_namespace: Callable[[], str]) -> str:
    """One of the test's own."""
    return new_namespace()
