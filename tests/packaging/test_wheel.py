"""What a wheel holds: the packages and the chart, and nothing that only this repository needs."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
OURS = re.compile(
    r"/codegen/|/generate_messages|\.proto$|^(tests|bench|docs|e2e|examples)/|(^|/)tests?/.*\.py$|__pycache__"
)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of a wheel that is built now."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    return zipfile.ZipFile(wheel).namelist()


def test_generators_and_tests_stay_here(names: list[str]) -> None:
    """Installations have what `make generate` wrote, not what it runs."""
    assert [name for name in names if OURS.search(name)] == []


def test_the_examples_are_there(names: list[str]) -> None:
    """`dynamo example` has in an installation what it has in a clone."""
    files = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {f"dynamo/cli/{file}" for file in files.split()}
    assert {name for name in names if name.startswith("dynamo/cli/examples/")} == wanted


def test_the_chart_is_there(names: list[str]) -> None:
    """`dynamo install` works without a source tree; every package is there, typed."""
    chart = ROOT / "charts/dynamo-platform"
    files = {str(path.relative_to(chart)) for path in chart.rglob("*") if path.is_file()} - {"README.md"}
    folder = "dynamo/cli/cluster/charts/dynamo-platform/"
    assert {name.removeprefix(folder) for name in names if name.startswith(folder)} == files
    assert "dynamo/frontend/kserve/inference_pb2.py" in names
    assets = {f"dynamo/frontend/console/console.{kind}" for kind in ("html", "css", "js")}
    assert assets <= set(names)
    assert "dynamo_command.py" in names
    for package in ("runtime", "llm", "frontend", "worker", "operator", "cli"):
        assert f"dynamo/{package}/py.typed" in names
