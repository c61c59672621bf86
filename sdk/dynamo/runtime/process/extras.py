"""How an extra of ours is installed: the one sentence that error messages have. Pure.

docs/get-started/install.md explains it; while no release is on an index, pip installs the clone.
"""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, as a part of a sentence."""
    return f"run pip install -e '.[{extra}]' in the clone"
