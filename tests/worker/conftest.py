"""A NATS server for the tests that start whole worker processes."""

from __future__ import annotations

import pytest
from tests.fixtures_nats import NatsServer


@pytest.fixture(scope="session")
def nats_url(nats_server: NatsServer) -> str:
    """The address of the `nats-server` of this test process."""
    return nats_server.url
