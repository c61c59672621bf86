"""The platform's chart as an archive: which images it asks for, and its files as a folder."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import yaml

from dynamo.cli.bundle.errors import BundleError

CHART: Final = "dynamo-platform"
OURS: Final = "dynamo-pipelines/"
"""What the images of this project begin with."""
_MOST: Final = 1 << 20
_MOST_UNPACKED: Final = 16 << 20
_MOST_FILES: Final = 1000
_UNREADABLE: Final = (
    OSError, EOFError, tarfile.TarError, zlib.error, yaml.YAMLError, LookupError, TypeError, AttributeError,
)  # fmt: skip
"""How a chart shows that it is none."""


def wanted_by(chart: Path) -> dict[str, str]:
    """Return what a chart's archive asks for, and where its own values pull each from.

    BundleError where it isn't one.
    """
    try:
        with tarfile.open(chart, "r:gz") as archive:
            values, facts = (_load(archive.extractfile(f"{CHART}/{name}")) for name in ("values.yaml", "Chart.yaml"))
        return _images(values, str(facts["appVersion"]))
    except _UNREADABLE as error:
        raise BundleError(f"{chart} can't be read as the chart {CHART}: {error}") from None


def unpack(content: bytes, folder: Path) -> Path:
    """Unpack a chart's archive; return its folder below `folder`. BundleError where it is none, or a bomb."""
    try:
        unzipped = zlib.decompressobj(wbits=31)  # gzip
        plain = unzipped.decompress(content, _MOST_UNPACKED)
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
            members = archive.getmembers()
            if not unzipped.eof or len(members) > _MOST_FILES or not all(member.isfile() for member in members):
                raise BundleError(
                    f"the chart {CHART} in the bundle is cut, or holds more than {_MOST_FILES} files or "
                    f"{_MOST_UNPACKED >> 20} MiB, or something else than files: make the bundle again"
                )
            archive.extractall(folder, members, filter="data")
    except (OSError, tarfile.TarError, zlib.error) as error:
        raise BundleError(f"the chart {CHART} in the bundle can't be unpacked: {error}. Make it again") from None
    return folder / CHART


def _load(file: IO[bytes] | None) -> Any:
    if file is None:
        raise LookupError("a file is missing")
    return yaml.safe_load(file.read(_MOST))


def _images(values: Mapping[str, Any], version: str) -> dict[str, str]:
    pipelines = values["pipelines"]["images"]
    images = [values[part]["image"] for part in ("operator", "etcd", "nats")]
    images += [
        {"registry": pipelines["registry"], "repository": name, "tag": ""}
        for name in (pipelines["frontend"], *pipelines["workers"].values())
    ]
    named = [(f"{image['repository']}:{image['tag'] or version}", image["registry"]) for image in images]
    return {name: f"{registry}/{name}" if registry else name for name, registry in named}
