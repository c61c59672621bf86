"""Container images as docker-archives, written without a container tool."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.kind.steps import run

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LONG_AGO = "1970-01-01T00:00:00Z"
TAR_SECONDS = 300


@dataclass(frozen=True)
class Image:
    """Names with tags, layers (tar files, lowest first) and the runtime's configuration (OCI: Entrypoint, Env, ...)."""

    names: Sequence[str]
    layers: Sequence[Path]
    config: Mapping[str, object] = field(default_factory=dict)


def layer_of(folder: Path, tar: Path, exclude: Sequence[str] = ()) -> Path:
    """Write a folder's content as a layer; `exclude` holds paths below it, as `./build`."""
    without = [f"--exclude={path}" for path in exclude]
    run(["tar", "--sort=name", "--numeric-owner", *without, "-C", folder, "-cf", tar, "."], seconds=TAR_SECONDS)
    return tar


def write(image: Image, out: Path) -> Path:
    """Write a docker-archive, which docker load, ctr images import and kind load image-archive read."""
    config = _json(_config(image))
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    layers = [f"layer{number}.tar" for number in range(len(image.layers))]
    with tempfile.TemporaryDirectory(dir=out.parent) as made:
        folder = Path(made)
        (folder / name).write_bytes(config)
        manifest = {"Config": name, "RepoTags": list(image.names), "Layers": layers}
        (folder / "manifest.json").write_bytes(_json([manifest]))
        for layer, tar in zip(layers, image.layers, strict=True):
            (folder / layer).symlink_to(tar.absolute())
        command: list[str | Path] = [
            "tar",
            "--dereference",
            "-C",
            folder,
            "-cf",
            folder / "out",
            "manifest.json",
            name,
            *layers,
        ]
        run(command, seconds=TAR_SECONDS)
        (folder / "out").rename(out)
    return out


def _config(image: Image) -> dict[str, object]:
    given = image.config.get("Env", ())
    environment = [PATH, *(given if isinstance(given, list) else ())]
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": LONG_AGO,
        "config": {**image.config, "Env": environment},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_sha256(layer)}" for layer in image.layers]},
        "history": [{"created": LONG_AGO, "created_by": "make e2e"} for _ in image.layers],
    }


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
