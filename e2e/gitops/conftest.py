"""A control plane with Argo CD for the tests that need it, and a namespace for each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from e2e.apiserver.plane import Plane
from e2e.apiserver.world import World, namespace_of, new_world
from e2e.gitops.argocd import ArgoCd
from e2e.gitops.repository import Repository
from e2e.kind.places import Places


@pytest.fixture(scope="session")
def argo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArgoCd]:
    """Running, on a control plane of its own."""
    plane = Plane(Places.of(os.environ).bin, tmp_path_factory.mktemp("plane"))
    plane.demand("argocd", "kustomize")
    found = ArgoCd(plane, tmp_path_factory.mktemp("argo"))
    try:
        plane.start()
        found.install()
        found.start()
        yield found
    finally:
        found.stop()
        plane.stop()


@pytest.fixture
def world(argo: ArgoCd, request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of its own, the CRD and the chart's rights; no operator runs yet."""
    with new_world(argo.plane, namespace_of(request.node)) as found:
        yield found


@pytest.fixture
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Empty."""
    return Repository(tmp_path_factory.mktemp("git") / "repository")
