"""What a build gets to see: a copy of the files that .dockerignore lets through, so that nobody's edit gets between."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_MADE = {"__pycache__", ".mypy_cache", ".ruff_cache"}


def allowed(root: Path) -> list[str]:
    """The paths that .dockerignore names with `!`; it leaves out everything else."""
    return [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")]


def snapshot(root: Path, folder: Path) -> None:
    """Copy the allowed files of `root` into `folder`, all with the same times and modes."""
    for source in _files(root):
        target = folder / source.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        os.utime(target, (0, 0))


def digest_of(folder: Path) -> str:
    """Names, modes and contents below `folder`, as hexadecimal sha256."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(folder)}\0{path.stat().st_mode:o}\0{content}\n".encode())
    return found.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for name in allowed(root):
        path = root / name
        yield from [path] if path.is_file() else sorted(each for each in path.rglob("*") if _wanted(each, root))


def _wanted(path: Path, root: Path) -> bool:
    return path.is_file() and path.suffix != ".pyc" and not _MADE & set(path.relative_to(root).parts)
