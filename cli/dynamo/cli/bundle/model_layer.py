"""A model's files as one more layer of a worker's image, below /models, so that pods need no download and no claim."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dynamo.cli.bundle.archive import BundleWriter
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import LAYER_TYPE, Blob
from dynamo.cli.bundle.read_file import content_of, unreadable
from dynamo.cli.bundle.tar_format import END, header, padding

FOLDER: Final = "models"
NAME: Final = re.compile(r"[\w.+ -]{1,200}", re.ASCII)
"""What a file or folder with a model may be called."""
_MOST_FILES: Final = 10_000


class ModelFile(NamedTuple):
    """A file of a model, and where it goes in the layer."""

    target: str
    source: Path
    size: int


class ModelLayer:
    """A model that lies here, as a file or a folder. BundleError where it doesn't."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._name = name or os.path.basename(os.path.abspath(path))  # a link keeps its name
        if not NAME.fullmatch(self._name):
            raise BundleError(
                f"{self._name!r} can't be a model's name in a bundle, which has letters, digits, spaces and . _ + - "
                "only: give another one, as NAME=PATH"
            )
        root = f"{FOLDER}/{self._name}"
        self._files = _files(path, root)
        self.place = f"/{root}"
        """Where the image has it."""
        folders = {parent.as_posix() for file in self._files for parent in Path(file.target).parents} - {"."}
        self._folders = sorted(folders)

    @property
    def slug(self) -> str:
        """Return its name as a part of an image's: `Gemma-3 270M.gguf` is `gemma-3-270m`."""
        stem = self._name.removesuffix(".gguf")
        letters = "".join(c if c.isascii() and c.isalnum() else "-" for c in stem.lower())
        words = "-".join(part for part in letters.split("-") if part)
        return words[:64].rstrip("-") or hashlib.sha256(stem.encode()).hexdigest()[:8]

    @property
    def size(self) -> int:
        """Return its bytes as a layer."""
        heads = (*(header(f"{name}/", 0, folder=True) for name in self._folders), *map(_head, self._files))
        content = sum(file.size + padding(file.size) for file in self._files)
        return sum(map(len, heads)) + content + len(END)

    def write(self, into: BundleWriter) -> tuple[Blob, str]:
        """Write it; return the blob and its diff ID, which is the digest of what isn't compressed."""
        blob = into.blob(self.size, self._chunks(), LAYER_TYPE)
        return blob, blob.digest

    def _chunks(self) -> Iterator[bytes]:
        for name in self._folders:
            yield header(f"{name}/", 0, folder=True)
        for file in self._files:
            yield _head(file)
            yield from content_of(file.source)
            yield bytes(padding(file.size))
        yield END


def _files(path: Path, root: str) -> list[ModelFile]:
    """Return the files of a model; a folder may hold links to files, as a cache of the hub does."""
    try:
        sources: Iterable[Path] = [path] if path.is_file() else sorted(path.rglob("*"))
        files = [
            ModelFile(f"{root}{_below(path, source)}", source, source.stat().st_size)
            for source in sources
            if source.is_file()
        ]
    except OSError as error:
        raise unreadable(path, error) from None
    if not files or len(files) > _MOST_FILES:
        raise BundleError(
            f"{path} is no model: {len(files)} files, and 1 to {_MOST_FILES} are wanted. "
            "`dynamo models pull ORG/NAME` fetches one and prints its folder"
        )
    return files


def _below(path: Path, source: Path) -> str:
    return "" if source == path else f"/{source.relative_to(path).as_posix()}"


def _head(file: ModelFile) -> bytes:
    return header(file.target, file.size)
