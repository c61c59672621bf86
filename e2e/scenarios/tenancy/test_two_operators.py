"""A second platform, installed by mistake for a namespace that the first one serves: nobody fights, nothing moves."""

from __future__ import annotations

import time

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import wait_for_leader
from e2e.cluster.releases import RELEASE, helm, install
from e2e.namespace.namespace import Namespace
from e2e.traffic.busy import NAME, Note, busy, load, mocker, serve, uids, wait_rolled

SAID_SECONDS = 60
QUIET_SECONDS = 30.0


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1500)
def test_by_mistake(namespace: Namespace, platform: Platform, record_property: Note) -> None:
    """The second one says so in an Event and stands back, also in a rollout; uninstalled, it leaves nothing behind."""
    wait_for_leader(platform)
    serve(namespace, mocker(replicas=2))
    pods = uids(namespace)
    with load(namespace) as both:
        install(namespace)
        wait_for("the second one says so", lambda: told(namespace), SAID_SECONDS)
        version = namespace.pipeline(NAME)["metadata"]["resourceVersion"]
        time.sleep(QUIET_SECONDS)
        assert uids(namespace) == pods
        assert namespace.pipeline(NAME)["metadata"]["resourceVersion"] == version
        namespace.apply(busy(mocker(replicas=2, env=[{"name": "TURN", "value": "next"}])))
        wait_rolled(namespace, pods)
        assert namespace.pipeline(NAME)["status"]["operator"].startswith(f"{platform.namespace}/")
        helm(namespace, "uninstall", RELEASE, "--wait", "--timeout=120s")
        namespace.wait_ready(NAME)
    both.judge(record_property)


def told(namespace: Namespace) -> bool:
    """An Event names both installations."""
    found = namespace.list("v1/Event")
    return any(one["reason"] == "ServedByAnother" and namespace.name in one["message"] for one in found)
