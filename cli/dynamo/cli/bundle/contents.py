"""What a bundle says that it holds, in bundle.json and index.json, checked against the files that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final, NamedTuple

from dynamo.cli.bundle import layout, signing
from dynamo.cli.bundle.archive import SIGNATURE, SUMS, Bundle
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import Image
from dynamo.cli.bundle.model_layer import FOLDER, NAME
from dynamo.cli.bundle.platform_chart import CHART

CONTENTS_FILE: Final = "bundle.json"
_PATH: Final = re.compile(rf"/{FOLDER}/{NAME.pattern}", re.ASCII)


class Model(NamedTuple):
    """A model in an image: what a component of a pipeline says."""

    image: str
    path: str


class Contents(NamedTuple):
    """Version of the platform, and models."""

    version: str
    models: list[Model]

    def to_json(self) -> bytes:
        """Return it as bundle.json has it."""
        said = {**self._asdict(), "models": [model._asdict() for model in self.models]}
        return json.dumps(said, indent=1).encode()


def read_contents(bundle: Bundle) -> Contents:
    """Return what a bundle says of itself. BundleError where that can't be read."""
    try:
        said = json.loads(bundle.read(CONTENTS_FILE))
        models = [Model(str(model["image"]), str(model["path"])) for model in said["models"]]
        contents = Contents(str(said["version"]), models)
    except (ValueError, LookupError, TypeError, RecursionError):
        raise BundleError(f"{CONTENTS_FILE} in {bundle.path} can't be read: make the bundle again") from None
    images = layout.read_index(bundle.read(layout.INDEX_FILE))
    are_there = all(_PATH.fullmatch(model.path) and model.image in images for model in models)
    if not are_there or not re.fullmatch(r"[\w.+-]{1,64}", contents.version):
        raise BundleError(f"{CONTENTS_FILE} in {bundle.path} names what isn't there: make the bundle again")
    return contents


def images_of(bundle: Bundle) -> list[Image]:
    """Return all images with what they consist of. BundleError where a part is missing."""
    images = [
        layout.read_manifest(name, blob, bundle.read(blob.file))
        for name, blob in layout.read_index(bundle.read(layout.INDEX_FILE)).items()
    ]
    for image in images:
        for blob in (image.manifest, *image.blobs):
            if bundle.size(blob.file) != blob.size:
                raise BundleError(f"{blob.file} in {bundle.path} has another size than {image.name} says")
    return images


def chart_name(bundle: Bundle) -> str:
    """Return the platform's chart among a bundle's files. BundleError where there is none."""
    name = next((name for name in bundle.names if re.fullmatch(rf"charts/{CHART}-[\w.+-]+\.tgz", name)), None)
    if name is None:
        raise BundleError(f"{bundle.path} has no chart {CHART}: make the bundle again")
    return name


def check_signature(bundle: Bundle, key: Path, folder: Path) -> None:
    """Check with a public key who made the checksums; `folder` is an empty one.

    BundleError where it wasn't the key's owner.
    """
    if SIGNATURE not in bundle.names:
        raise BundleError(f"{bundle.path} has no signature: it was made without --key")
    sums = bundle.read(SUMS)
    (folder / SUMS).write_bytes(sums)
    (folder / SIGNATURE).write_bytes(bundle.read(SIGNATURE))
    try:
        signing.check(folder / SUMS, key)
    except signing.SigningError as error:
        raise BundleError(f"{bundle.path}: {error}") from None
    bundle.trust(sums)
