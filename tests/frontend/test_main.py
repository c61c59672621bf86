"""An installation without the frontend's libraries says what to install."""

from __future__ import annotations

import sys

import pytest

from dynamo.frontend.main import main


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FastAPI the command ends with the extra's name, and no traceback."""
    for name in [m for m in sys.modules if m.startswith("dynamo.frontend.") and m != "dynamo.frontend.main"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(SystemExit, match=r"fastapi is not installed: run pip install -e .\.\[frontend\]"):
        main(["--help"])
