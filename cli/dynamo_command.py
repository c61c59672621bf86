"""The first lines of the console script `dynamo`: outside of the package, since another `dynamo` may hide that."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
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
    try:
        dynamo()
    except (AttributeError, ImportError) as error:
        if not (sentence := shadowed(error)):
            raise
        sys.stderr.write(f"Error: {sentence}\n")
        raise SystemExit(1) from None


def shadowed(error: Exception) -> str:
    """Say which file of PYTHONPATH takes the place of a package that an error is about; empty where none does."""
    added = {Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    for name in dict.fromkeys(re.findall(r"'(\w+)[\w.]*'", str(error))):
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None or spec.origin is None or name == "dynamo":
            continue
        place = Path(spec.origin)
        folder = _searched(place)
        rest = [entry for entry in sys.path if Path(entry).resolve() != folder.resolve()]
        if folder.resolve() in added and importlib.machinery.PathFinder.find_spec(name, rest) is not None:
            return (
                f"{name} is imported from {place}, by PYTHONPATH, in the place of the package ({error}): "
                f"unset PYTHONPATH, or take {folder} out of it"
            )
    return ""


def _searched(place: Path) -> Path:
    """Return the folder in which a package, or a module of one file, was looked for."""
    return place.parent.parent if place.name == "__init__.py" else place.parent


def hidden_by() -> str:
    """Say which package is found in the place of ours."""
    spec = importlib.util.find_spec("dynamo")
    if spec is None or spec.origin is None:
        return "dynamo.cli isn't installed: install the package again, or unset PYTHONPATH"
    place = Path(spec.origin)
    folder = _searched(place)
    return (
        f"another package called dynamo hides ours: {place}. Take {folder} out of PYTHONPATH (unset PYTHONPATH), "
        f"or uninstall that package (pip uninstall ai-dynamo)"
    )
