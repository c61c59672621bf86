"""One API server for all tests, which keep to namespaces of their own, or one for a test alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.apiserver.plane import Plane
from e2e.cli.shell import Shell, install_crd
from e2e.kind.places import Places


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """With our CRD."""
    found = Plane(Places.of(os.environ).bin, tmp_path_factory.mktemp("plane"))
    try:
        found.start()
        install_crd(found)
        yield found
    finally:
        found.stop()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Plane]:
    """A server of one's own, without our CRD."""
    found = Plane(Places.of(os.environ).bin, tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture
def shell(server: Plane) -> Shell:
    """An administrator's, in a fresh namespace."""
    return Shell.fresh(server)
