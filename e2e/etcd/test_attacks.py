"""Tenants on the chart's etcd: none of the attacks succeeds that succeed on an old one, and none that never did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

import pytest
from e2e.kind.places import REPOSITORY
from tests.fixtures_etcd import CHOSEN
from tests.operator.credentials import attacks
from tests.operator.credentials.attacks import EVERYTHING, RECORD, Attack, Stage, b64, came_true

SUITE = ("tests/operator/credentials", "tests/system/test_sign_in.py", "tests/runtime/discovery/test_etcd_security.py")
"""`make test` runs them on PyPI's etcd; what they say must hold on the chart's too, with the operator's check of it."""
SUITE_SECONDS = 480


def succeeded(stage: Stage, tried: Iterable[Attack]) -> list[str]:
    return [name for name, yes in came_true(stage, tuple(tried)).items() if yes]


def test_a_tenant_stays_in_its_own_keys(stage: Stage) -> None:
    """Nested transactions, watches, leases, compaction, users: all refused, and nothing of the victim's has changed."""
    before = stage.post("kv/range", EVERYTHING).json()["kvs"]
    assert succeeded(stage, attacks.KEYS + attacks.SERVER + attacks.ALARMS) == []
    after = [
        kv for kv in stage.post("kv/range", EVERYTHING).json()["kvs"] if kv["key"] != b64(stage.of_victim("secret"))
    ]
    assert after == before
    assert stage.seen() == RECORD
    assert stage.post("lease/keepalive", {"ID": stage.lease}, "victim").json()["result"]["TTL"] == "3600"


@pytest.mark.parametrize("first", ["nobody", "tenant"])
def test_no_alarm_opens_the_way(stage: Stage, first: str) -> None:
    """Not even while a real alarm is up: a full database leaves the rights as they are."""
    stage.post("maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "0"}).raise_for_status()
    tried = [attack for attack in attacks.SERVER + attacks.ALARMS + attacks.KEYS if attack.who == first]
    watches = [attack for attack in tried if "watches" in attack.name]  # the victim can't write what they wait for
    assert succeeded(stage, (attack for attack in tried if attack not in watches)) == []


def test_what_a_tenant_may_do(stage: Stage) -> None:
    """What etcd leaves to every user, so that it is known: leases of its own, members, its own user and role."""
    grant = stage.post("lease/grant", {"TTL": "600"}, "tenant")
    assert grant.status_code == 200
    assert stage.post("lease/revoke", {"ID": grant.json()["ID"]}, "tenant").status_code == 200
    for path, body in (
        ("cluster/member/list", {}),
        ("maintenance/status", {}),
        ("auth/user/get", {"name": "tenant"}),
        ("auth/role/get", {"role": "tenant"}),
    ):
        assert stage.post(path, body, "tenant").status_code == 200, path
    for path, body in (("auth/user/get", {"name": "victim"}), ("auth/role/get", {"role": "victim"})):
        assert stage.post(path, body, "tenant").status_code == 403, path
    assert stage.victim not in stage.post("auth/role/get", {"role": "tenant"}, "tenant").text


@pytest.mark.full
def test_the_suite_of_sign_in_passes_here(chosen: str) -> None:
    """The tests of credentials that `make test` runs on an old etcd pass on this one, unskipped."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")} | {CHOSEN: chosen}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *SUITE]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=SUITE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
