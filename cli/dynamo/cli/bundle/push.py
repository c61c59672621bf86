"""The steps of `dynamo bundle push`: every image of a bundle goes to a registry, each layer once where it can mount."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final

from dynamo.cli.bundle.archive import Bundle
from dynamo.cli.bundle.contents import images_of
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import Image, split_name
from dynamo.cli.bundle.registry import Address, Registry

_HOST: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d{1,5})?")
Say = Callable[[str], None]


def read_address(text: str) -> Address:
    """Read `registry.example.com:5000/team`. BundleError where it is none."""
    host, _, path = text.rstrip("/").partition("/")
    if not _HOST.fullmatch(host):
        raise BundleError(f"{text!r} is no registry: write HOST, HOST:PORT or HOST/PATH, without https://")
    if path:
        split_name(f"{path}:x")
    return Address(host, path)


def push(bundle: Bundle, address: Address, registry: Registry, say: Say) -> int:
    """Push all images; return the bytes that were sent. What is there already is left as it is."""
    places: dict[str, str] = {}
    sent = 0
    for image in images_of(bundle):
        sent += _push(bundle, image, address, registry, places)
        say(f"+ {address}/{image.name}")
    return sent


def _push(bundle: Bundle, image: Image, address: Address, registry: Registry, places: dict[str, str]) -> int:
    name, tag = split_name(image.name)
    repository, sent = address.repository(name), 0
    for blob in image.blobs:
        if not registry.has(repository, blob):
            content = functools.partial(bundle.chunks, blob.file)
            sent += blob.size * registry.upload(repository, blob, content, places.get(blob.digest, ""))
        places.setdefault(blob.digest, repository)
    registry.name(repository, tag, bundle.read(image.manifest.file))
    return sent
