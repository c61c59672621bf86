"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures_nats import NatsServer


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests of this process share."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.servers)])
def bus_server(request: pytest.FixtureRequest) -> NatsServer | None:
    """For a test over both buses: the shared server, and None for memory."""
    found: NatsServer | None = request.getfixturevalue("nats_server") if request.param == "nats" else None
    return found
