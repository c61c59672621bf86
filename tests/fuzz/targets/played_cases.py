"""Cases that go wrong, for tests of `children.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random


def corpus() -> dict[str, Callable[[], object]]:
    """One of each sort, the last of them well."""
    return {"raises": lambda: dict[str, int]()["x"], "dies": os.abort, "spins": _spin, "ends": lambda: None}


def case(random: Random) -> tuple[str, Callable[[], object]]:
    """One that is well."""
    return f"made {random.random():.3f}", lambda: None


def _spin() -> None:
    while True:
        pass
