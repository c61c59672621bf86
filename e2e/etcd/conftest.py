"""The platform's etcd, as the chart starts it, on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from e2e.kind.binaries import PLATFORM_ETCD
from e2e.kind.places import REPOSITORY, Places
from tests.fixtures_etcd import CHOSEN, EtcdServer
from tests.operator.credentials import attacks
from tests.operator.credentials.attacks import Stage

QUOTA_BYTES = 64 * 1024 * 1024
"""The chart's is 256 MiB; a smaller one is sooner full."""
GOLDEN = REPOSITORY / "tests/charts/golden/default.yaml"
LEFT = ("--bcrypt-cost", "--snapshot-count", "--max-request-bytes")
"""Of the chart's flags those that matter here and don't say where it runs."""


def charts_container() -> dict[str, Any]:
    """etcd's, as the chart renders it by default."""
    documents = yaml.safe_load_all(GOLDEN.read_text())
    sets = [
        document
        for document in documents
        if document["kind"] == "StatefulSet" and document["metadata"]["name"].endswith("-etcd")
    ]
    container: dict[str, Any] = sets[0]["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, which servers of this test run."""
    binary = Places.of(os.environ).bin / PLATFORM_ETCD
    assert binary.exists(), f"{binary} is not there: `make e2e-up` builds it"
    monkeypatch.setenv(CHOSEN, str(binary))
    return str(binary)


@pytest.fixture
def etcd(chosen: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[EtcdServer]:
    """With the chart's flags, and a small quota."""
    container = charts_container()
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    flags = [word for word in container["command"] if word.startswith(LEFT)]
    assert len(flags) == len(LEFT)
    server = EtcdServer(*flags, f"--quota-backend-bytes={QUOTA_BYTES}")
    try:
        server.start()
        server.wait()
        yield server
    finally:
        server.close()


@pytest.fixture
def stage(etcd: EtcdServer) -> Iterator[Stage]:
    """Two tenants with the operator's users; nothing of the operator's checks is left out."""
    with attacks.staged(etcd.url) as staged:
        yield staged
