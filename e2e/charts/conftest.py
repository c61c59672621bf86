"""Helm for the tests that render the charts; those of tests/charts need none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from e2e.charts.helm import Helm

BUILD = "GOBIN=$HOME/.cache/dynamo-pipelines/bin go install helm.sh/helm/v3/cmd/helm@v3.19.2"


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The helm that HELM names, else the one on PATH or in the cache."""
    cached = Path.home() / ".cache/dynamo-pipelines/bin/helm"
    binary = os.environ.get("HELM") or shutil.which("helm") or (str(cached) if cached.exists() else None)
    if not binary:
        pytest.fail(f"no helm: set HELM, put one on PATH, or build it: {BUILD}")
    return Helm(binary)
