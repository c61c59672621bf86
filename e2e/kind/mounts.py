"""Mounts that a command left behind when it was killed: they go before the folder that they lie in."""

from __future__ import annotations

import shutil
from pathlib import Path

from e2e.kind.steps import run


def unmount_below(folder: Path) -> None:
    """Unmount all that is mounted in a folder or below it, the innermost first."""
    mounts = [Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if mount.is_relative_to(folder)), reverse=True):
        run(["umount", "-l", mount], seconds=20)


def remove(folder: Path) -> None:
    """Remove a folder, and never what is mounted in it."""
    unmount_below(folder)
    shutil.rmtree(folder, ignore_errors=True)
