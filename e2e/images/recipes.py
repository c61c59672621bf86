"""Which images there are, under the names that the chart asks for. Decisions only: nothing is run here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_HUB = "docker.io"
OPENAI = {"ENGINE": "openai"}
COLLECTOR = f"{_HUB}/otel/opentelemetry-collector:0.165.0"
"""That takes traces in a scenario; e2e/kind/go/otelcol has its version."""


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
    """The name of the recipe whose image is given as `parent_arguments`."""
    parent_arguments: tuple[str, ...] = ("WORKER",)
    target: str = ""
    """The stage to build; empty: the last one."""
    files: tuple[str, ...] = ()
    """Files beside the Dockerfile that the build needs, and that .dockerignore leaves out."""
    is_stock: bool = False
    """Whether it stands for an image of somebody else's, or is built on one: it keeps their promises, not ours."""
    is_full: bool = False
    """Whether only scenarios marked `full` need it."""
    has_full_pods: bool = False
    """Whether only scenarios marked `full` have pods of it; it is made all the same."""

    @property
    def holds_source(self) -> bool:
        """Whether our source is put into it by this recipe, and not by its parent's."""
        return not self.parent or bool(self.target)

    @property
    def sources(self) -> tuple[str, ...]:
        """Files that the build gets beside the context."""
        return (self.file, *self.files)


@dataclass(frozen=True)
class Program:
    """An image of somebody else's that holds one static program: pulled where there is a registry, else made."""

    name: str
    reference: str
    command: str
    built: str = ""
    """The file among our built binaries; empty: called as the command is."""
    folder: str = "usr/local/bin"
    """Where the official image has it."""
    is_full: bool = False
    """Whether only scenarios marked `full` need it."""


@dataclass(frozen=True)
class Catalogue:
    """Every image that a cluster needs which can pull none."""

    recipes: tuple[Recipe, ...]
    programs: tuple[Program, ...]

    @property
    def ours(self) -> list[str]:
        """Those that the project gives its users."""
        return [recipe.name for recipe in self.recipes if not (recipe.parent or recipe.is_stock)]

    @property
    def names(self) -> list[str]:
        """In the order in which they are made."""
        return [*(program.name for program in self.programs), *(recipe.name for recipe in self.recipes)]

    @property
    def usual(self) -> list[str]:
        """Those that scenarios need which aren't marked `full`."""
        rare = {recipe.name for recipe in self.recipes if recipe.is_full}
        rare |= {program.name for program in self.programs if program.is_full}
        return [name for name in self.names if name not in rare]

    @property
    def loaded(self) -> list[str]:
        """Of the usual ones those that nodes need."""
        spared = {recipe.name for recipe in self.recipes if recipe.has_full_pods}
        return [name for name in self.usual if name not in spared]


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
            Recipe("worker-llamacpp", llamacpp, "Dockerfile.worker", {"ENGINE": "llamacpp"}, has_full_pods=True),
            Recipe(
                "worker-openai",
                reference(registry, workers["openai"], version),
                "Dockerfile.worker",
                OPENAI,
                has_full_pods=True,
            ),
            Recipe("worker-gemma", _beside(llamacpp, "gemma"), "e2e/images/Dockerfile.gemma", parent="worker-llamacpp"),
            *_stock(llamacpp),
        ),
        programs=(
            Program("etcd", _reference(values["etcd"]["image"], version), "etcd", built="platform-etcd"),
            Program("nats", _reference(values["nats"]["image"], version), "nats-server"),
            Program("otelcol", COLLECTOR, "otelcol", built="otelcol", folder="", is_full=True),
        ),
    )


def _stock(worker: str) -> Iterator[Recipe]:
    """Yield an engine's own image, and the worker that is built beside it."""
    yield Recipe(
        "llama-server", _beside(worker, "stock"), "e2e/images/Dockerfile.llama-server",
        files=("e2e/images/llama_server.py",), is_stock=True, is_full=True,
    )  # fmt: skip
    yield Recipe(
        "worker-beside", _beside(worker, "beside"), "Dockerfile.worker", {"ENGINE": "llamacpp"}, "llama-server",
        parent_arguments=("BASE", "BUILDER"), target="beside", is_stock=True, is_full=True,
    )  # fmt: skip


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
