"""How many threads a process may keep busy: the engines that compute on the CPU ask.

More threads than cores is far worse than fewer, since they wait for each other by
spinning; and a container sees all cores of its node, whatever its limit is.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(limit: Path = LIMIT) -> int:
    """Cores of this process: those it may run on, or its container's limit where that is less."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _quota(limit) or allowed))


def _quota(limit: Path) -> int | None:
    """Whole cores of a cgroup's `quota period`; None where there is no limit."""
    try:
        quota, period = limit.read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no cgroup of version 2, or the word `max`
        return None
