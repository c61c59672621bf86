"""Names and JSON of images in a bundle, which is an OCI image layout as well. Pure.

Source: the OCI image specification 1.1 (image-layout.md, manifest.md, config.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynamo.cli.bundle.errors import BundleError

LAYOUT_FILE: Final = "oci-layout"
LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'
INDEX_FILE: Final = "index.json"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
NAME_KEY: Final = "org.opencontainers.image.ref.name"
_COMPRESSED: Final = {b"\x1f\x8b": "+gzip", b"\x28\xb5\x2f\xfd": "+zstd"}
_HUB: Final = ("docker.io/library/", "docker.io/")
_NAME: Final = re.compile(
    r"(?P<repository>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))"
)
"""Source: the OCI distribution specification 1.1, "Pulling manifests"."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_LAYERS: Final = 256


class Blob(NamedTuple):
    """Bytes in a bundle, called by what they hash to."""

    digest: str
    size: int
    media_type: str

    @property
    def file(self) -> str:
        """Return the name of its file."""
        return f"blobs/{self.digest.replace(':', '/')}"

    def described(self) -> dict[str, Any]:
        """Return it as an OCI descriptor."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


class Image(NamedTuple):
    """An image: its name without a registry, its manifest, and what the manifest lists."""

    name: str
    manifest: Blob
    config: Blob
    layers: tuple[Blob, ...]

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Return what a registry must have before it takes the manifest."""
        return (self.config, *self.layers)


def digest_of(content: bytes) -> str:
    """Return `sha256:…`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def layer_type(head: bytes) -> str:
    """Return the media type of a layer by its first bytes."""
    return LAYER_TYPE + next((kind for magic, kind in _COMPRESSED.items() if head.startswith(magic)), "")


def split_name(name: str) -> tuple[str, str]:
    """Return repository and tag of a name without a registry. BundleError where it is none."""
    match = _NAME.fullmatch(name)
    if match is None or len(name) > 255:
        raise BundleError(f"{name[:200]!r} is no name of an image: write repository:tag, in small letters")
    return match["repository"], match["tag"]


def without_registry(reference: str) -> str:
    """Return `nats:2` for `docker.io/library/nats:2` and `coreos/etcd:v3` for `quay.io/coreos/etcd:v3`.

    That is what `global.imageRegistry` of the chart puts its registry before.
    """
    for hub in _HUB:
        if reference.startswith(hub):
            return reference.removeprefix(hub)
    host, slash, rest = reference.partition("/")
    return rest if slash and ("." in host or ":" in host or host == "localhost") else reference


def manifest_of(config: Blob, layers: Sequence[Blob]) -> bytes:
    """Return the manifest of an image."""
    return _json({
        "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config.described(),
        "layers": [layer.described() for layer in layers],
    })  # fmt: skip


def index_of(images: Iterable[tuple[Image, Mapping[str, Any]]]) -> bytes:
    """Return index.json of images and their configurations, which say for what machine they are."""
    manifests = [
        {
            **image.manifest.described(),
            "annotations": {NAME_KEY: image.name},
            "platform": dict(zip(("os", "architecture"), machine_of(config).split("/"), strict=True)),
        }
        for image, config in images
    ]  # fmt: skip
    return _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests})


def read_index(content: bytes) -> dict[str, Blob]:
    """Return the manifests of an index by their images' names. BundleError where it is none."""
    listed = _object(content, INDEX_FILE).get("manifests")
    if not isinstance(listed, list):
        raise BundleError(f"{INDEX_FILE} lists no manifests: make the bundle again")
    result = {}
    for item in listed:
        notes = item.get("annotations") if isinstance(item, dict) else None
        name = notes.get(NAME_KEY) if isinstance(notes, dict) else None
        split_name(str(name))
        result[str(name)] = _blob(item, INDEX_FILE)
    return result


def read_manifest(name: str, blob: Blob, content: bytes) -> Image:
    """Return an image by its manifest. BundleError where it is none."""
    said = _object(content, f"the manifest of {name}")
    layers = said.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise BundleError(f"the manifest of {name} has no list of at most {_MOST_LAYERS} layers: make the bundle again")
    where = f"the manifest of {name}"
    return Image(name, blob, _blob(said.get("config"), where), tuple(_blob(layer, where) for layer in layers))


def with_layer(config: bytes, diff_id: str, comment: str) -> bytes:
    """Return an image's configuration with one more layer, which is uncompressed and hashes to `diff_id`."""
    said = _object(config, "the image's configuration")
    root = said.get("rootfs")
    known = root.get("diff_ids") if isinstance(root, dict) else None
    if not isinstance(known, list):
        raise BundleError("the image's configuration lists no layers (rootfs.diff_ids): save it again")
    history = said.get("history")
    said["rootfs"] = {"type": "layers", "diff_ids": [*known, diff_id]}
    said["history"] = [
        *(history if isinstance(history, list) else ()),
        {"created_by": comment, "comment": "dynamo bundle"},
    ]
    return _json(said)


def read_config(content: bytes) -> dict[str, Any]:
    """Return an image's configuration. BundleError where it is none."""
    return _object(content, "the image's configuration")


def machine_of(config: Mapping[str, Any]) -> str:
    """Return for what an image is, as `linux/amd64`."""
    words = (str(config.get(key) or usual) for key, usual in (("os", "linux"), ("architecture", "amd64")))
    return "/".join(re.sub(r"[^a-z0-9]", "", word)[:32] or "unknown" for word in words)


def _blob(item: Any, where: str) -> Blob:
    said = item if isinstance(item, dict) else {}
    digest, size, kind = said.get("digest"), said.get("size"), said.get("mediaType")
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest) and isinstance(size, int) and size >= 0):
        raise BundleError(f"{where} names something without digest and size: make the bundle again")
    if not isinstance(kind, str) or not re.fullmatch(r"[\w./+-]{1,127}", kind):
        raise BundleError(f"{where} names {digest} without a media type: make the bundle again")
    return Blob(digest, size, kind)


def _object(content: bytes, what: str) -> dict[str, Any]:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise BundleError(f"{what} can't be read as a JSON object: it was made by something else, or is damaged")
    return said


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
