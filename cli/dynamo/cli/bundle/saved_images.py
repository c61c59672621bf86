"""Images as `docker save`, `podman save` and `make images` write them: an archive with a manifest.json.

Source: the Docker image specification 1.2, "Combined Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from dynamo.cli.bundle.archive import CHUNK, MOST_TEXT, BundleWriter
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import CONFIG_TYPE, Blob, layer_type, split_name, without_registry

_LIST: Final = "manifest.json"
_HEAD: Final = 4


class SavedImages:
    """An archive of images. BundleError where it is none."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._path = path
        self._archive = archive
        self._list = self._read_list()

    def names(self, chosen: str = "") -> list[tuple[str, int]]:
        """Return each name, without its registry, and which image has it; `chosen` is the name of the only one."""
        if chosen:
            if len(self._list) != 1:
                raise BundleError(f"{self._path} holds {len(self._list)} images: leave out {chosen}=")
            return [(_checked(without_registry(chosen)), 0)]
        named = [
            (_checked(without_registry(str(tag))), number)
            for number, image in enumerate(self._list)
            for tag in image.get("RepoTags") or []
        ]
        if not named:
            raise BundleError(f"the image in {self._path} has no name: give it as NAME:TAG={self._path}")
        return named

    def config(self, number: int) -> bytes:
        """Return an image's configuration."""
        return self._small(str(self._list[number].get("Config")))

    def layers(self, number: int, into: BundleWriter) -> list[Blob]:
        """Write an image's layers; return them in their order."""
        names = self._list[number].get("Layers")
        if not isinstance(names, list):
            raise self._broken("an image without layers")
        return [self._layer(str(name), into) for name in names]

    def _layer(self, name: str, into: BundleWriter) -> Blob:
        with self._open(name) as (file, size):
            head = file.read(_HEAD)
            file.seek(0)
            return into.blob(size, iter(lambda: file.read(CHUNK), b""), layer_type(head))

    def _small(self, name: str) -> bytes:
        with self._open(name) as (file, size):
            if size > MOST_TEXT:
                raise self._broken(f"{name} with {size} bytes")
            return file.read()

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        try:
            is_sparse = self._archive.getmember(name).issparse()
            file = None if is_sparse else self._archive.extractfile(name)
        except (KeyError, RecursionError):
            file = None
        if file is None:
            raise self._broken(f"no file {name[:100]} without holes")
        with file:
            size = file.seek(0, 2)
            file.seek(0)
            yield file, size

    def _read_list(self) -> list[dict[str, Any]]:
        try:
            said = json.loads(self._small(_LIST))
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, list) or not said or not all(isinstance(image, dict) for image in said):
            raise self._broken(f"no list of images in {_LIST}")
        return said

    def _broken(self, what: str) -> BundleError:
        return BundleError(f"{self._path} has {what}: save the image with `docker save` or `podman save`")


@contextmanager
def saved_images(path: Path) -> Iterator[SavedImages]:
    """Open an archive of images. BundleError where it can't be read, or not while it is copied."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            yield SavedImages(path, archive)
    except (OSError, tarfile.TarError) as error:
        raise BundleError(
            f"{path} can't be read as an archive of images: {error}. Give what `docker save` wrote, uncompressed"
        ) from None


def config_blob(content: bytes, into: BundleWriter) -> Blob:
    """Write a configuration."""
    return into.blob(len(content), [content], CONFIG_TYPE)


def _checked(name: str) -> str:
    split_name(name)
    return name
