"""Files that go into a bundle, read piece by piece. BundleError names the one that can't be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from dynamo.cli.bundle.archive import CHUNK
from dynamo.cli.bundle.errors import BundleError


def content_of(file: Path) -> Iterator[bytes]:
    """Yield a file's content."""
    try:
        with file.open("rb") as opened:
            yield from iter(lambda: opened.read(CHUNK), b"")
    except OSError as error:
        raise unreadable(file, error) from None


def sha256_of(file: Path) -> str:
    """Return what a file's content hashes to, in hexadecimal."""
    hashed = hashlib.sha256()
    for chunk in content_of(file):
        hashed.update(chunk)
    return hashed.hexdigest()


def unreadable(file: Path, error: OSError) -> BundleError:
    """Return the sentence for a file that can't be read."""
    return BundleError(f"{file} can't be read: {error.strerror or error}")
