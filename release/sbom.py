"""Bills of materials (SBOM) as CycloneDX 1.6: each package with version, kind and licence. Pure.

The same packages give the same bytes: its number is a digest of them, its time the commit's.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_NAMESPACE: Final = uuid.UUID("6f0c2b52-2a3a-4f4e-9d0f-1f0a3b7e5c11")


@dataclass(frozen=True, order=True)
class Package:
    """Something that is installed: of Python's index (`pypi`) or of Debian (`deb`)."""

    kind: str
    name: str
    version: str
    licence: str = ""
    """As its author names it; empty where nothing says it."""

    @property
    def url(self) -> PackageURL:
        """Its package URL, by which scanners look for its faults."""
        return PackageURL(self.kind, "debian" if self.kind == "deb" else None, self.name, self.version)


def sbom_of(name: str, version: str, packages: Iterable[Package], epoch: int) -> str:
    """Return the document about something of ours that consists of `packages`."""
    there = sorted(set(packages))
    subject = Component(
        name=name, version=version, type=ComponentType.APPLICATION, bom_ref=name,
        licenses=[LicenseFactory().make_with_expression("Apache-2.0")],
    )  # fmt: skip
    digest = uuid.uuid5(_NAMESPACE, "\n".join([name, version, *(f"{p.url} {p.licence}" for p in there)]))
    bom = Bom(
        serial_number=digest,
        metadata=BomMetaData(timestamp=datetime.datetime.fromtimestamp(epoch, datetime.UTC), component=subject),
        components=[_component(package) for package in there],
    )
    bom.register_dependency(subject, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def licences(packages: Iterable[Package]) -> str:
    """Return a line for each licence, with the packages that have it."""
    table: dict[str, list[str]] = {}
    for package in sorted(set(packages)):
        table.setdefault(package.licence or "not said in its metadata", []).append(f"{package.name} {package.version}")
    return "".join(
        f"{licence}\n" + "".join(f"  {name}\n" for name in names) for licence, names in sorted(table.items())
    )


def _component(package: Package) -> Component:
    return Component(
        name=package.name, version=package.version, type=ComponentType.LIBRARY, purl=package.url,
        bom_ref=str(package.url),
        licenses=[LicenseFactory().make_from_string(package.licence)] if package.licence else (),
    )  # fmt: skip
