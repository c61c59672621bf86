"""What a conversation in a terminal doesn't wait for."""

from __future__ import annotations

import subprocess
import sys


def test_answers_need_no_fastapi() -> None:
    """The application imports it with the first request of another route: it takes a quarter of a second."""
    code = "import sys, dynamo.frontend.app; print('fastapi' in sys.modules, 'pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
