"""Fixtures of the scenarios; e2e/README.md says how to write one."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from e2e import arrival, distribution
from e2e.cluster import dump, installation
from e2e.cluster.cluster import Cluster
from e2e.cluster.installation import Platform
from e2e.namespace.namespace import RUN_LABEL, Namespace

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios"
TIMEOUT_SECONDS = 600
NAMESPACES = pytest.StashKey[list[Namespace]]()
MACHINE = pytest.StashKey[ExitStack]()
KEPT = pytest.StashKey[bool]()
"""Whether this process keeps the machine for its next test."""


def pytest_configure(config: pytest.Config) -> None:
    """Markers of ours."""
    config.addinivalue_line("markers", "alone: changes the platform, or measures: no other scenario beside it")
    config.addinivalue_line("markers", "quiet: judges tenths of a second on a busy path: no other test beside it")
    config.addinivalue_line("markers", "full: takes long; only `make e2e-full` runs it")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> distribution.ByGroup:
    """Of all tests of this run."""
    return distribution.ByGroup(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Time for real pods to start, and an order in which processes seldom wait.

    Those that need no cluster come first, since it may still be on its way; then those that run alone, one after the
    other in one process, the quiet ones last; then the rest. Files stay together, and folders whose tests share an API
    server.
    """
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))
    items.sort(key=lambda item: (_needs_cluster(item), not _alone(item), _quiet(item)))
    distribution.write(config, {item.nodeid: _group(item) for item in items})


def _group(item: pytest.Item) -> str:
    if _alone(item):
        return "alone"
    if _needs_cluster(item) or item.path.is_relative_to(SCENARIOS):
        return item.path.stem
    return item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else item.path.parent.name


def _needs_cluster(item: pytest.Item) -> bool:
    return "cluster" in getattr(item, "fixturenames", ())


def _needs_platform(item: pytest.Item) -> bool:
    return "installed" in getattr(item, "fixturenames", ())


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None


def _shared(config: Any) -> Path:
    """The temporary folder that all processes of this run have in common."""
    base: Path = config._tmp_path_factory.getbasetemp()
    return base.parent if hasattr(config, "workerinput") else base


@contextmanager
def _machine(folder: Path, *, alone: bool) -> Iterator[None]:
    """Use the machine beside other tests, or alone. One that wants it alone waits until the others have none left.

    Nobody waits for it meanwhile: the longest of the others takes ten minutes, in which nothing else would run.
    """
    with (folder / "machine.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
    """Wait for cluster, machine and platform before the test's time runs.

    A cluster that does not come fails each test at once. Quiet tests that follow each other keep the machine.
    """
    if _needs_cluster(item):
        with suppress(arrival.NotComingError):
            arrival.wait()
    shared, stash = _shared(item.config), item.config.stash
    machine = stash.setdefault(MACHINE, ExitStack())
    if not stash.get(KEPT, False):
        machine.enter_context(_machine(shared, alone=_quiet(item)))
    stash[KEPT] = nextitem is not None and _quiet(item) and _quiet(nextitem)
    needs = _needs_platform(item)
    platform = installation.held(shared, alone=_alone(item)) if needs else nullcontext()
    try:
        with platform:
            return (yield)
    finally:
        if not stash[KEPT]:
            machine.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """After a failure: what the cluster says, while it is still there."""
    report = yield
    namespaces = item.stash.get(NAMESPACES, [])
    if report.failed and report.when != "teardown" and namespaces:
        report.sections.append(("cluster", dump.of(namespaces[0].cluster, namespaces, installation.NAMESPACE)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The figures that scenarios recorded, above pytest's last line."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            terminalreporter.write_line(f"{report.nodeid}: {name} = {value}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On a cluster that stays, take away what an interrupted scenario left, and the platform that we brought."""
    if hasattr(session.config, "workerinput") or os.environ.get("E2E_CLUSTER_GOES"):
        return
    if "E2E_RUN" in os.environ and "E2E_KUBECONFIG" in os.environ:
        ours = ["-l", f"{RUN_LABEL}={os.environ['E2E_RUN']}"]
        _cluster().kubectl("delete", "namespace", *ours, "--wait=false", "--ignore-not-found")
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is not None and installation.marker(factory.getbasetemp()).exists():
        installation.uninstall(_cluster())


def _cluster() -> Cluster:
    try:
        arrival.wait()
    except arrival.NotComingError as error:
        pytest.fail(str(error), pytrace=False)
    kubeconfig = os.environ.get("E2E_KUBECONFIG")
    if not kubeconfig:
        pytest.fail("no cluster: run `make e2e`, or name a kubeconfig in E2E_KUBECONFIG (e2e/README.md)", pytrace=False)
    return Cluster(Path(kubeconfig))


@pytest.fixture
def note(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> Callable[[str, object], None]:
    """Figures are shown, and kept in a JUnit report."""

    def keep(what: str, value: object) -> None:
        record_property(what, value)
        with capsys.disabled():
            sys.stdout.write(f"\n  {what}: {value}\n")

    return keep


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that E2E_KUBECONFIG names."""
    return _cluster()


@pytest.fixture(scope="session")
def installed(cluster: Cluster, request: pytest.FixtureRequest) -> Platform:
    """CRD, operator, etcd and NATS, installed once for all processes of this run."""
    return installation.once(_shared(request.config), cluster)


@pytest.fixture
def platform(installed: Platform) -> Platform:
    """What is installed, in use by this test: beside others, or by it alone (`pytest_runtest_protocol`)."""
    return installed


@pytest.fixture
def new_namespace(
    request: pytest.FixtureRequest, cluster: Cluster, platform: Platform
) -> Iterator[Callable[[], Namespace]]:
    """Make a namespace; all are deleted at the end."""
    made = request.node.stash.setdefault(NAMESPACES, [])

    def make() -> Namespace:
        title = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
        namespace = Namespace(cluster, f"e2e-{title[:30].strip('-')}-{secrets.token_hex(3)}")
        made.append(namespace)
        namespace.create()
        return namespace

    yield make
    for namespace in made:
        namespace.leave()


@pytest.fixture
def namespace(new_namespace: Callable[[], Namespace]) -> Namespace:
    """One namespace of this test's own, empty."""
    return new_namespace()
