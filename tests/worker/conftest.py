"""A NATS server for the tests that start whole worker processes, and a started engine of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.fixtures_nats import NatsServer
from tests.worker.engine_rigs import NAMES, RIGS, Run, alone, shared


@pytest.fixture(scope="session")
def nats_url(nats_server: NatsServer) -> str:
    """The address of the `nats-server` of this test process."""
    return nats_server.url


@pytest.fixture(scope="module")
def together() -> Iterator[Callable[[str], Run]]:
    """One started engine of each kind that takes long to start."""
    with shared() as rig:
        yield rig


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest, together: Callable[[str], Run]) -> Run:
    """Runs a coroutine function with a started engine."""
    name: str = request.param
    return together(name) if RIGS[name].takes_long else alone(name)
