"""What programs, shells and images know of this package stays where it is, wherever files move."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.packaging.public_surface import ROOT, public_lines

PROGRAMS = (
    "dynamo.cli", "dynamo.cli.run", "dynamo.frontend", "dynamo.mocker", "dynamo.operator",
    "dynamo.operator.credentials", "dynamo.router", "dynamo.sglang", "dynamo.trtllm", "dynamo.vllm",
    "dynamo.worker", "dynamo.worker.fetch",
)  # fmt: skip
IMAGES = {
    "Dockerfile.frontend": ["python", "-m", "dynamo.frontend"],
    "Dockerfile.worker": ["python", "-m", "dynamo.worker"],
    "images/Dockerfile.operator": ["python", "-m", "dynamo.operator"],
}


def test_every_public_name_is_as_it_was() -> None:
    """After a decision to change one: `python -m tests.packaging.public_surface > tests/packaging/public_names.txt`."""
    assert public_lines() == Path(__file__).with_name("public_names.txt").read_text().splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_m_runs_it(name: str) -> None:
    """Each is a module that does something when it is run, or a package with a `__main__`."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    assert spec is not None
    assert 'if __name__ == "__main__":' in Path(str(spec.origin)).read_text()


def test_console_scripts_lead_to_functions() -> None:
    """Each script of pyproject.toml names a function that is there."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_layers_offer_themselves_under_their_extras() -> None:
    """`dynamo.llm` finds what stands above it by these entry points, and names the extra where one can't be loaded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["dynamo.layers"]
    installed = {entry.name: entry for entry in importlib.metadata.entry_points(group="dynamo.layers")}
    assert {name: entry.value for name, entry in installed.items()} == declared
    assert declared.keys() <= project["optional-dependencies"].keys()
    assert all(callable(entry.load()) for entry in installed.values())


@pytest.mark.parametrize("file", IMAGES)
def test_images_run_the_same_commands(file: str) -> None:
    """What a pod template or a compose file adds arguments to."""
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", (ROOT / file).read_text(), re.MULTILINE)
    assert entry is not None
    assert json.loads(entry[1]) == IMAGES[file]
