"""Clusters and pipelines that are broken in one way: `dynamo doctor` names it first, with a command that mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.diagnosis.cluster_breakages import CLUSTER
from tests.cli.diagnosis.cluster_server import HEALTHY, ApiServer, served

from dynamo.cli.main import dynamo


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with served(tmp_path_factory.mktemp("kube")) as file:
        yield file


@pytest.mark.parametrize("name", CLUSTER)
def test_cause_comes_first(name: str, kubeconfig: Path) -> None:
    """Code, cause and command, at exit code 1."""
    breakage = CLUSTER[name]
    objects = {**HEALTHY, **breakage.objects}
    ApiServer.objects = {path: live for path, live in objects.items() if live is not None}
    ApiServer.rights, ApiServer.skew = breakage.rights, breakage.skew
    words = [breakage.name] if breakage.name else ["--cluster"]
    done = CliRunner().invoke(dynamo, ["doctor", *words, "--kubeconfig", str(kubeconfig), "-o", "json"])
    first = json.loads(done.output)["findings"][0]
    assert (done.exit_code, first["code"]) == (1, breakage.code), done.output
    assert breakage.cause in f"{first['what']} {first['cause']}"
    assert breakage.mend in first["mend"]
