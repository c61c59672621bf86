"""The console script where another package called dynamo hides ours: one sentence, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = "import sys; sys.argv = ['dynamo', '--version']; import dynamo_command; dynamo_command.main()"


def test_a_file_in_the_place_of_a_dependency(tmp_path: Path) -> None:
    """Its place, and the variable by which it came."""
    (tmp_path / "yaml.py").write_text("")
    done = _run(tmp_path, command=COMMAND.replace("'--version'", "'validate', 'none.yaml'"))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert f"yaml is imported from {tmp_path}/yaml.py, by PYTHONPATH" in done.stderr
    assert "unset PYTHONPATH" in done.stderr


def _run(*first: Path, command: str = COMMAND) -> subprocess.CompletedProcess[str]:
    cli = Path(__file__).parents[3] / "cli"
    path = os.pathsep.join(map(str, (*first, cli, *filter(None, sys.path))))
    return subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def test_another_package_is_named(tmp_path: Path) -> None:
    """Its place, the variable by which it came, and the command."""
    assert _run().returncode == 0
    (tmp_path / "dynamo").mkdir()
    (tmp_path / "dynamo" / "__init__.py").write_text("")
    done = _run(tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"{tmp_path}/dynamo/__init__.py. Take {tmp_path} out of PYTHONPATH (unset PYTHONPATH)" in done.stderr
