"""Which images there are, under the names that the chart asks for. Decisions only: nothing is run here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_HUB = "docker.io"


@dataclass(frozen=True)
class Recipe:
    """An image that a Dockerfile makes."""

    name: str
    reference: str
    """`registry/repository:tag`, in full."""
    file: str
    """The Dockerfile, from the repository's root."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    """The name of the recipe whose image is given as WORKER."""


@dataclass(frozen=True)
class Program:
    """An image of somebody else's that holds one static program: pulled where there is a registry, else made."""

    name: str
    reference: str
    command: str
    built: str = ""
    """The file among our built binaries; empty: called as the command is."""


@dataclass(frozen=True)
class Catalogue:
    """Every image that a cluster needs which can pull none."""

    recipes: tuple[Recipe, ...]
    programs: tuple[Program, ...]

    @property
    def ours(self) -> list[str]:
        """Those that the project gives its users."""
        return [recipe.name for recipe in self.recipes if not recipe.parent]

    @property
    def names(self) -> list[str]:
        """In the order in which they are made."""
        return [*(program.name for program in self.programs), *(recipe.name for recipe in self.recipes)]


def read(root: Path) -> Catalogue:
    """The catalogue of a checkout."""
    chart = root / "charts/dynamo-platform"
    load = yaml.safe_load
    return catalogue(load((chart / "values.yaml").read_text()), load((chart / "Chart.yaml").read_text())["appVersion"])


def default_base(root: Path) -> str:
    """The image that the Dockerfiles start from unless they are given another."""
    lines = (root / "Dockerfile.frontend").read_text().splitlines()
    return next(line for line in lines if line.startswith("ARG BASE=")).removeprefix("ARG BASE=")


def catalogue(values: Mapping[str, Any], version: str) -> Catalogue:
    """What the chart `dynamo-platform` asks for with `values` (its own, as a rule) and the app's `version`."""
    pipelines = values["pipelines"]["images"]
    registry, workers = pipelines["registry"], pipelines["workers"]
    operator = _reference(values["operator"]["image"], version)
    llamacpp = reference(registry, workers["llamacpp"], version)
    return Catalogue(
        recipes=(
            Recipe("operator", operator, "images/Dockerfile.operator"),
            Recipe("frontend", reference(registry, pipelines["frontend"], version), "Dockerfile.frontend"),
            Recipe("worker", reference(registry, workers["default"], version), "Dockerfile.worker"),
            Recipe("worker-llamacpp", llamacpp, "Dockerfile.worker", {"ENGINE": "llamacpp"}),
            Recipe("worker-gemma", _beside(llamacpp, "gemma"), "e2e/images/Dockerfile.gemma", parent="worker-llamacpp"),
        ),
        programs=(
            Program("etcd", _reference(values["etcd"]["image"], version), "etcd", built="platform-etcd"),
            Program("nats", _reference(values["nats"]["image"], version), "nats-server"),
        ),
    )


def reference(registry: str, repository: str, tag: str) -> str:
    """The full name, as container runtimes complete a short one: `nats` is `docker.io/library/nats`."""
    registry = registry or _HUB
    if registry == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    return f"{registry}/{repository}:{tag}"


def digest(**inputs: object) -> str:
    """A short name for what an image is made of: equal inputs, equal name."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def _reference(image: Mapping[str, str], version: str) -> str:
    return reference(image["registry"], image["repository"], image["tag"] or version)


def _beside(worker: str, name: str) -> str:
    """The reference of another engine's worker: `…/worker-llamacpp:1` and `gemma` give `…/worker-gemma:1`."""
    repository, _, tag = worker.rpartition(":")
    return f"{repository.rpartition('-')[0]}-{name}:{tag}"
