"""What the tests of credentials share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures_etcd import CHOSEN, EtcdServer


@pytest.fixture
def old_etcd(monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdServer]:
    """PyPI's, whatever the others run on: in it, users get at the keys of others."""
    monkeypatch.delenv(CHOSEN, raising=False)
    with EtcdServer.running() as server:
        yield server
