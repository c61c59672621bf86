"""Entry point of `dynamo-frontend`. `process.py` does the work; apart from it, an incomplete installation says so."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script, or `python -m dynamo.frontend`."""
    try:
        from dynamo.frontend.process import make_command
    except ModuleNotFoundError as error:
        from dynamo.runtime.process.extras import install_hint

        sys.exit(f"dynamo-frontend: {error.name} is not installed: {install_hint('frontend')}")
    make_command().main(None if argv is None else list(argv))
