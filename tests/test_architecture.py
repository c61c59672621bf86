"""Imports go one way; pyproject.toml's import contracts say which, and import-linter checks."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_import_contracts_hold() -> None:
    """cli > frontend | worker | operator > llm > runtime, the operator stands alone, and each package has layers."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None))"
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "0 broken" in answer.stdout
