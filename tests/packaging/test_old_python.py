"""`make` with a Python that is too old: refused at once, and no environment is left."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLD = """#!/bin/sh
case "$*" in
  --version) echo "Python 3.10.12" ;;
  *version_info*) exit 1 ;;
  *) mkdir -p .venv/bin; exit 3 ;;
esac
"""


def test_an_old_python_is_refused_at_once(tmp_path: Path) -> None:
    """The line names what is needed and what there is; the next try with a newer one begins from nothing."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    old = tmp_path / "python3.10"
    old.write_text(OLD)
    old.chmod(0o755)
    began = time.monotonic()
    done = subprocess.run(
        ["make", "up", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "needs Python 3.11 or later" in done.stderr
    assert "Python 3.10.12" in done.stderr
    assert not (tmp_path / ".venv").exists()
    assert time.monotonic() - began < 5
