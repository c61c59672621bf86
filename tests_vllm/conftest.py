"""One vLLM for all tests of this folder: it takes half a minute to start. See CONTRIBUTING.md, `make test-vllm`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import etcd_server as etcd_server
from tests.fixtures_nats import NatsServer
from tests.worker.engine_rigs import RIGS, VLLM, Kind, Run, shared
from tests_vllm.tiny_model import write

DRAWN: Final = "vllm-drawn"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model."""
    return write(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    """Runs a coroutine function with the engine that all tests share: the contract's, but of random weights."""
    RIGS[DRAWN] = Kind("vllm", write, VLLM, real=True, apart=True)
    with shared() as found:
        yield found(DRAWN)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests of this process share."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()
