"""Why sign-in is refused on an old etcd: what a tenant, and somebody without any user, can do there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures_etcd import EtcdServer
from tests.operator.credentials import attacks
from tests.operator.credentials.attacks import Stage, came_true

from dynamo.operator.credentials import etcd_versions

pytestmark = pytest.mark.servers


@pytest.fixture
def old_stage(old_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Two tenants on PyPI's etcd, set up past the check."""
    monkeypatch.setattr(etcd_versions, "refused", lambda version: None)
    with attacks.staged(old_etcd.url) as stage:
        yield stage


def test_rights_hold_little_back_on_an_old_etcd(old_stage: Stage) -> None:
    """Reading, writing and deleting others' keys in nested transactions, watching them, leases, compaction."""
    tried = attacks.KEYS + attacks.SERVER
    assert came_true(old_stage, tried) == {attack.name: attack.on_old for attack in tried}
    assert old_stage.seen("rogue") == "rogue"


def test_nobody_turns_sign_in_off_on_an_old_etcd(old_stage: Stage) -> None:
    """An alarm, which needs no user, drops the check of rights with everything behind it."""
    tried = attacks.ALARMS
    assert came_true(old_stage, tried) == {attack.name: attack.on_old for attack in tried}
