"""The first lines of the console script `dynamo`: outside of the package, since another `dynamo` may hide that."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Run `dynamo`; where another package of that name is found first, say which, and what mends it."""
    try:
        from dynamo.cli.start import dynamo
    except ModuleNotFoundError as error:
        if error.name not in ("dynamo.cli", "dynamo.cli.start", "dynamo"):
            raise
        sys.stderr.write(f"Error: {hidden_by()}\n")
        raise SystemExit(1) from None
    dynamo()


def hidden_by() -> str:
    """Say which package is found in the place of ours."""
    spec = importlib.util.find_spec("dynamo")
    if spec is None or spec.origin is None:
        return "dynamo.cli isn't installed: install the package again, or unset PYTHONPATH"
    place = Path(spec.origin)
    folder = place.parent.parent if place.name == "__init__.py" else place.parent
    return (
        f"another package called dynamo hides ours: {place}. Take {folder} out of PYTHONPATH (unset PYTHONPATH), "
        f"or uninstall that package (pip uninstall ai-dynamo)"
    )
