"""Releases, archives of images and bundles, small enough to flip each of their bytes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from release.build import checksums
from release.charts import pack

from dynamo.cli.bundle.archive import SUMS
from dynamo.cli.bundle.command import bundle

CHARTS = Path(__file__).parents[3] / "charts"
OURS = ("operator", "frontend", "worker", "worker-llamacpp", "worker-openai")
STOCK = {"etcd.tar": "quay.io/coreos/etcd:v3.6.16", "nats.tar": "docker.io/library/nats:2.12.1-alpine"}
Saved = Callable[..., Path]


def layer(content: bytes) -> bytes:
    """A layer with one file."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        member = tarfile.TarInfo("file")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def save(path: Path, images: Mapping[str | None, list[bytes]]) -> Path:
    """Write images by name as `docker save` does."""
    listed, files = [], {}
    for number, (name, layers) in enumerate(images.items()):
        diffs = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in layers]
        config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diffs}}
        files[f"{number}.json"] = json.dumps(config).encode()
        files |= {f"{number}/{place}/layer.tar": content for place, content in enumerate(layers)}
        names = [f"{number}/{place}/layer.tar" for place in range(len(layers))]
        listed.append({"Config": f"{number}.json", "RepoTags": [name] if name else None, "Layers": names})
    with tarfile.open(path, "w") as archive:
        for name, content in {**files, "manifest.json": json.dumps(listed).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release with the charts of this tree and images of a few bytes, which share their first layer."""
    folder = tmp_path / "release"
    folder.mkdir()
    for chart in ("dynamo-platform", "dynamo-pipeline"):
        pack(CHARTS / chart, folder, 0)
    for name in OURS:
        layers = [layer(b"base"), layer(name.encode())]
        save(folder / f"{name}-0.1.0.tar", {f"docker.io/dynamo-pipelines/{name}:0.1.0": layers})
    (folder / SUMS).write_text(checksums(folder.iterdir()))
    return folder


@pytest.fixture
def stock(tmp_path: Path) -> list[str]:
    """The words that add etcd and NATS."""
    saved = [save(tmp_path / file, {name: [layer(name.encode())]}) for file, name in STOCK.items()]
    return [word for path in saved for word in ("--image", str(path))]


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `dynamo bundle`."""

    def go(*words: str | Path) -> Result:
        return CliRunner().invoke(bundle, [str(word) for word in words], catch_exceptions=False)

    return go


@pytest.fixture
def made(release: Path, stock: list[str], run: Callable[..., Result], tmp_path: Path) -> Path:
    """A whole bundle."""
    out = tmp_path / "bundle.tar"
    done = run("make", out, "--release", release, *stock)
    assert done.exit_code == 0, done.output
    return out
