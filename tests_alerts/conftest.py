"""One Prometheus with its Alertmanager, one etcd and one NATS for all tests; each has a namespace of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import warm
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests_alerts.monitoring import Monitoring, monitored
from tests_alerts.operator import OperatorSite
from tests_alerts.site import Site


def pytest_sessionstart() -> None:
    """Say what is missing before anything starts."""
    missing = [name for name in ("prometheus", "promtool", "prometheus-alertmanager") if shutil.which(name) is None]
    if missing:
        pytest.exit(f"{', '.join(missing)}: apt-get install prometheus prometheus-alertmanager", returncode=2)


@pytest.fixture(scope="session", autouse=True)
def no_nursery_stays() -> Iterator[None]:
    """What programs are forked from ends with the tests."""
    yield
    warm.close()


@pytest.fixture(scope="session")
def monitoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    with monitored(tmp_path_factory.mktemp("monitoring")) as running:
        yield running


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    nats = NatsServer(tmp_path_factory.mktemp("nats"))
    with EtcdServer.running() as etcd:
        yield {"ETCD_ENDPOINTS": etcd.url, "NATS_SERVER": nats.url}
    nats.kill()


@pytest.fixture
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monitoring: Monitoring, servers: dict[str, str]
) -> Iterator[Site]:
    """A namespace, with nothing in it yet."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    running = Site(name, tmp_path, monitoring, servers)
    yield running
    running.close()


@pytest.fixture
def operator_site(request: pytest.FixtureRequest, tmp_path: Path, monitoring: Monitoring) -> Iterator[OperatorSite]:
    """The operator's process, on an API server that can fail."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    running = OperatorSite(name, tmp_path, monitoring)
    yield running
    running.close()
