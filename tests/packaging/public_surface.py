"""The public surface as lines: `python -m tests.packaging.public_surface` prints what `public_names.txt` holds."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FACADES: Final = ("dynamo.runtime", "dynamo.llm", "dynamo._core")
MODULES: Final = ("dynamo.runtime.logging", "dynamo.llm.exceptions")
"""Modules below a facade that programs import by their own names."""


def public_lines() -> list[str]:
    """Return every console script, and every public name with what it is and its parameters."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return [f"script {name}" for name in sorted(scripts)] + [
        line for package in (*FACADES, *MODULES) for line in _names(package)
    ]


def _names(package: str) -> Iterator[str]:
    module = importlib.import_module(package)
    for name in sorted(_listed(module)):
        value: Any = getattr(module, name)
        yield f"{package}.{name} {_kind(value)}"


def _listed(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name for name, value in vars(module).items()
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))
    ]  # fmt: skip


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        own = {name for kind in value.__mro__ if kind.__module__.startswith("dynamo") for name in vars(kind)}
        return f"class({', '.join(sorted(name for name in own if not name.startswith('_')))})"
    if inspect.isfunction(value):
        return f"function({', '.join(inspect.signature(value).parameters)})"
    return type(value).__name__


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in public_lines())
