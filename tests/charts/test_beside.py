"""`images/beside.py`: our packages come in beside an engine's, and none of the engine's changes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from tests.charts.documents import ROOT

PROGRAM = ROOT / "images/beside.py"


@pytest.fixture(scope="module")
def beside() -> ModuleType:
    """The program as a module; it lies in no package."""
    spec = importlib.util.spec_from_file_location("beside", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_engines_versions_bind(beside: ModuleType) -> None:
    """A package that both have is held at the engine's version, build and all; what it lacks at ours."""
    ours = "# a comment\nMsgSpec==0.20.0\ntorch==2.0\nnats_py[nkeys]==2.12.0 ; python_version > '3'\n-e .\n"
    assert beside.merged({"torch": "2.8.0+cu128"}, ours) == "msgspec==0.20.0\nnats-py==2.12.0\ntorch==2.8.0+cu128\n"


def test_a_changed_package_is_named(beside: ModuleType) -> None:
    """Additions are fine; another version and a lost package are not."""
    before = {"torch": "2.8.0+cu128", "vllm": "0.32.0", "numpy": "2.0"}
    assert beside.changed(before, {**before, "nats-py": "2.12.0"}) == []
    after = {"torch": "2.9.0", "numpy": "2.0"}
    assert beside.changed(before, after) == ["torch 2.8.0+cu128 is 2.9.0", "vllm 0.32.0 is gone"]


def test_what_our_part_lacks_is_named(beside: ModuleType) -> None:
    """At any depth of what was added, markers and extras considered; a pre-release of an engine counts."""
    packages = {"vllm": "0.33.0.dev1", "nats-py": "2.12.0", "cryptography": "1"}
    requires = {"nats-py": ["nkeys>=0.2; extra == 'nkeys'", "cryptography>=2", "win; sys_platform == 'win32'"]}
    needs = ["vllm>=0.32", "nats-py[nkeys]>=2.12", "uvloop>=0.21; sys_platform != 'win32'"]
    assert beside.unmet(needs, requires, packages, Requirement) == [
        "nats-py needs cryptography>=2, and 1 is there",
        "nats-py needs nkeys>=0.2; extra == 'nkeys', which is missing",
        "the worker needs uvloop>=0.21; sys_platform != 'win32', which is missing",
    ]
    packages |= {"nkeys": "0.2.1", "cryptography": "46", "uvloop": "0.22"}
    assert beside.unmet(needs, requires, packages, Requirement) == []
    assert beside.unmet(["vllm>=0.34"], {}, packages, Requirement) == [
        "the worker needs vllm>=0.34, and 0.33.0.dev1 is there"
    ]


def test_an_engine_is_seen_and_stays(tmp_path: Path) -> None:
    """A real environment beside a made-up engine sees it, editable links too; a need that it can't meet ends it."""
    engine, ours, source = tmp_path / "engine", tmp_path / "ours", tmp_path / "source"
    for folder in (engine, ours):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (inside,) = (engine / "lib").glob("python3*/site-packages")
    for name, version in (("fakevllm", "1.0"), ("torch", "2.8.0+cu128"), ("pip", "0")):
        metadata = inside / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    source.mkdir()
    (source / "fakevllm.py").write_text("HERE = True\n")
    (inside / "linked.pth").write_text(f"{source}\n")
    code = f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import beside, pathlib; "
    sees = f"beside.sees(pathlib.Path({str(ours)!r})); print(beside.merged(beside.listed(), ''))"
    done = subprocess.run([str(engine / "bin/python"), "-c", code + sees], check=True, capture_output=True, text=True)
    assert done.stdout == "fakevllm==1.0\npip==0\ntorch==2.8.0+cu128\n\n"
    python = str(ours / "bin/python")
    listed = subprocess.run([python, str(PROGRAM), "list"], check=True, capture_output=True, text=True)
    assert listed.stdout == "fakevllm==1.0\npip==0\ntorch==2.8.0+cu128\n"
    subprocess.run([python, "-c", "import fakevllm; assert fakevllm.HERE"], check=True)


def test_a_variant_is_another_wheel_of_the_same_bounds() -> None:
    """`--variant cuda` names mistral.rs' wheel for CUDA; a variant that nobody publishes is refused."""
    words = [sys.executable, str(ROOT / "images/needs.py"), "--variant", "cuda", str(ROOT / "pyproject.toml")]
    lines = subprocess.run([*words, "worker", "mistralrs"], check=True, capture_output=True, text=True).stdout
    assert "\nmistralrs-cuda>=" in lines
    assert "\nmistralrs>" not in lines
    words[3] = "rocm"
    refused = subprocess.run([*words, "worker", "mistralrs"], check=False, capture_output=True, text=True)
    assert refused.stderr == "rocm is no variant: use cuda, or leave it out\n"
