"""From the charts and the CRD of the commit before to these, and back, with a pipeline that serves all the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from e2e.cluster.installation import CHART, Platform
from e2e.cluster.outage import operator_down
from e2e.cluster.releases import install
from e2e.images import earlier
from e2e.kind.places import REPOSITORY
from e2e.kind.steps import run
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object
from e2e.traffic.busy import NAME, Note, load, mocker, serve, uids, wait_rolled
from e2e.traffic.traffic import traffic

CRD = "crds/dynamo.dev_dynamopipelines.yaml"
FRONTEND: Object = {"replicas": 2, "migrationLimit": 3, "workerWaitTimeoutSeconds": 30}
"""As the production checklist has it."""
GIT_SECONDS = 60
SETTLED_SECONDS = 10.0
ALIKE = (
    "--set", "etcd.auth.enabled=true", "--set", "nats.auth.enabled=true",
    "--set", f"etcd.image.tag={yaml.safe_load((CHART / 'values.yaml').read_text())['etcd']['image']['tag']}",
)  # fmt: skip
"""Where charts differ so that pods have to be replaced: sign-in by default, and the etcd that it needs."""


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_up_and_back(namespace: Namespace, platform: Platform, record_property: Note, tmp_path: Path) -> None:
    """No pod of a pipeline is replaced by either, since the images are the same, and no request fails."""
    before = before_the_last_change(tmp_path)
    with operator_down(platform), definition(namespace, before / CRD):
        install(namespace, *ALIKE, chart=before / "charts" / CHART.name)
        serve(namespace, mocker(replicas=2), frontend={"replicas": 2})
        pods = uids(namespace), uids(namespace, "frontend")
        with load(namespace) as both:
            for folder in (REPOSITORY, before, REPOSITORY):
                namespace.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder / CRD))
                install(namespace, *ALIKE, chart=folder / "charts" / CHART.name)
                namespace.wait_ready(NAME)
                assert (uids(namespace), uids(namespace, "frontend")) == pods
        both.judge(record_property)
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_sign_in_is_turned_on(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """As the upgrade of an old installation does: requests fail for a while, and nobody has to lift a finger."""
    with operator_down(platform):
        install(namespace, "--set", "etcd.auth.enabled=false", "--set", "nats.auth.enabled=false")
        serve(namespace, mocker(replicas=2), frontend={"replicas": 2})
        before, began = uids(namespace), time.monotonic()
        with traffic(namespace, NAME) as seen:
            install(namespace)
            wait_rolled(namespace, before)
            record_property("seconds until all is Ready with sign-in", round(time.monotonic() - began))
        record_property("streams meanwhile", str(seen))
        with load(namespace) as both:
            time.sleep(SETTLED_SECONDS)
        both.judge(record_property)
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_another_release_and_back(
    namespace: Namespace, platform: Platform, record_property: Note, tmp_path: Path
) -> None:
    """All images change, both ways; frontends and workers of both releases serve beside each other meanwhile."""
    of = earlier.commit()
    before = earlier.charts(tmp_path, of)
    record_property("the release before", of[:12])
    with operator_down(platform), definition(namespace, before / CRD):
        install(namespace, *ALIKE, *earlier.VALUES, chart=before / "charts" / CHART.name)
        serve(namespace, mocker(replicas=2), frontend=FRONTEND)
        with load(namespace) as both:
            for folder, images in ((REPOSITORY, ()), (before, earlier.VALUES)):
                workers, frontends = uids(namespace), uids(namespace, "frontend")
                namespace.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder / CRD))
                install(namespace, *ALIKE, *images, chart=folder / "charts" / CHART.name)
                wait_rolled(namespace, workers)
                wait_rolled(namespace, frontends, "frontend")
                time.sleep(SETTLED_SECONDS)
        both.judge(record_property)
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_another_release_while_no_request_may_wait_for_a_worker(
    namespace: Namespace, platform: Platform, record_property: Note, tmp_path: Path
) -> None:
    """NATS is replaced first; workers and frontends follow once it is back, so that there always is a worker."""
    of = earlier.commit()
    before = earlier.charts(tmp_path, of)
    with operator_down(platform), definition(namespace, before / CRD):
        install(namespace, *ALIKE, *earlier.VALUES, chart=before / "charts" / CHART.name)
        serve(namespace, mocker(replicas=2), frontend={"replicas": 2, "migrationLimit": 3})
        workers, frontends = uids(namespace), uids(namespace, "frontend")
        with load(namespace) as both:
            namespace.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(REPOSITORY / CRD))
            install(namespace, *ALIKE, chart=REPOSITORY / "charts" / CHART.name)
            wait_rolled(namespace, workers)
            wait_rolled(namespace, frontends, "frontend")
            time.sleep(SETTLED_SECONDS)
        both.judge(record_property)
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")


@contextmanager
def definition(namespace: Namespace, file: Path) -> Iterator[None]:
    """Another CRD inside; ours afterwards."""
    apply = ("apply", "--server-side", "--force-conflicts", "-f")
    namespace.cluster.kubectl(*apply, str(file))
    try:
        yield
    finally:
        namespace.cluster.kubectl(*apply, str(REPOSITORY / CRD))


def before_the_last_change(folder: Path) -> Path:
    """Charts and CRD as they were before the last commit that changed them."""
    last = run(["git", "-C", REPOSITORY, "log", "-1", "--format=%H", "--", *earlier.CHARTS], seconds=GIT_SECONDS)
    assert last, "this scenario needs the repository's history, where the charts of another commit are"
    return earlier.charts(folder, f"{last.strip()}^")
