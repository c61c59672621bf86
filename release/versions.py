"""The version of a release: pyproject.toml has it, and what can't read it from there repeats it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FORM: Final = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
_REPEATED: Final = {
    "pyproject.toml": (r'(?m)^version = "(.+)"$',),
    "charts/dynamo-platform/Chart.yaml": (r"(?m)^version: (.+)$", r'(?m)^appVersion: "(.+)"$'),
    "charts/dynamo-pipeline/Chart.yaml": (r"(?m)^version: (.+)$", r'(?m)^appVersion: "(.+)"$'),
    "images/docker-bake.hcl": (r'variable "VERSION" \{\n  default = "(.+)"',),
    "Dockerfile.frontend": (r"(?m)^ARG VERSION=(.+)$",),
    "Dockerfile.worker": (r"(?m)^ARG VERSION=(.+)$",),
    "images/Dockerfile.operator": (r"(?m)^ARG VERSION=(.+)$",),
}
"""Where it stands, by a pattern whose group is the version."""


def version_of(root: Path) -> str:
    """Return the version that a checkout is of."""
    return str(tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def spelled(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each file that names the version, and what it says; ValueError where one says nothing."""
    for name, patterns in _REPEATED.items():
        text = (root / name).read_text("utf-8")
        for pattern in patterns:
            versions = re.findall(pattern, text)
            if not versions:
                raise ValueError(f"{name} names no version: {pattern} isn't in it")
            yield from ((name, version) for version in versions)


def set_version(root: Path, version: str) -> list[str]:
    """Write a version everywhere; return the files. ValueError for one of another form than 1.2.3 or 1.2.3rc1."""
    if not _FORM.fullmatch(version):
        raise ValueError(f"{version} is no version: write it as 0.2.0 or 0.2.0rc1")
    for name, patterns in _REPEATED.items():
        path = root / name
        text = path.read_text("utf-8")
        for pattern in patterns:
            text = re.sub(pattern, lambda match: match[0].replace(match[1], version), text)
        path.write_text(text, "utf-8")
    return [*_REPEATED]
