"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, settings
from tests import warm
from tests.environments import quick_environment
from tests.fixtures_etcd import CHOSEN, EtcdServer
from tests.fixtures_nats import NatsServer

from dynamo.operator.credentials import etcd_versions

# What the documents are made by (`docs.generate`) lies beside the packages, not among them.
sys.path.append(str(Path(__file__).parents[1]))
# An example takes as long as the machine lets it: a deadline would fail whoever tests beside something else.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_sessionstart() -> None:
    """Nothing that is imported or collected is garbage: looking for some there is a tenth of the CPU."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that start processes or real engines come first, the longest of them before all, so that no test process
    is left alone with a long one at the end. `tests/order/distribution.py` hands them out.

    Those that talk to processes are tried twice, since a busy machine can hold up any process; the summary names each
    test that needed its second try. A test without processes has no such excuse. The lanes that have environments of
    their own lack the plugin, and try once.
    """

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("processes")
        return 0 if mark is None else mark.kwargs.get("seconds", 5)

    items.sort(key=seconds, reverse=True)
    for item in items if config.pluginmanager.hasplugin("rerunfailures") else ():
        if any(item.get_closest_marker(name) for name in ("processes", "servers")):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Import and rewrite all modules once, for all test processes."""
    from tests.order.forking import forking

    servers = contextlib.ExitStack()
    interpreter = servers.enter_context(forking(config.args))
    config.add_cleanup(servers.close)
    for spec in specs:
        spec.python = interpreter


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand tests out by both ends of their order."""
    from tests.order.distribution import Sides  # xdist isn't in the environments of real engines

    return Sides(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test speaks to a host that a public authority vouches for, so there is one that has vouched for nobody: each
    client and process that reads the system's list of 140 spends 50 ms of CPU on it, most of all in loops that ask
    until a server answers."""
    folder = tmp_path_factory.mktemp("authority")
    trustme.CA().cert_pem.write_to_path(str(folder / "one.pem"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "one.pem"))
        patch.setenv("SSL_CERT_DIR", str(folder))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_nursery_stays() -> Iterator[None]:
    """What programs are forked from ends with the tests."""
    yield
    warm.close()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server that all tests of this process share."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """An etcd for all tests of this process that don't harm it; each uses keys or namespaces of its own."""
    with EtcdServer.running() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """An etcd that the test may kill."""
    with EtcdServer.running() as server:
        yield server


@pytest.fixture
def servers(tmp_path: Path, own_etcd: EtcdServer) -> Iterator[dict[str, str]]:
    """The environment of programs that find each other over an etcd and a NATS of the test's own."""
    nats = NatsServer(tmp_path)
    yield quick_environment(tmp_path, ETCD_ENDPOINTS=own_etcd.url, NATS_SERVER=nats.url)
    nats.kill()


@pytest.fixture
def any_etcd_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign-in on PyPI's etcd too, which the operator refuses: for what doesn't depend on the version.

    `make e2e` runs the same tests on the chart's etcd, where nothing is let pass.
    """
    if CHOSEN not in os.environ:
        monkeypatch.setattr(etcd_versions, "refused", lambda version: None)


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.servers)])
def bus_server(request: pytest.FixtureRequest) -> NatsServer | None:
    """For a test over both buses: the shared server, and None for memory."""
    server: NatsServer | None = request.getfixturevalue("nats_server") if request.param == "nats" else None
    return server
