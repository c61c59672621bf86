"""Rendering with a real helm, and ways to look at what comes out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KUBERNETES = "1.34.0"
NAMESPACE = "dynamo"


class RefusedError(Exception):
    """Helm rendered nothing; the text is what the user sees."""


@dataclass(frozen=True)
class Helm:
    """One helm binary; the same values are rendered once."""

    binary: str
    _cache: dict[tuple[str, ...], str] = field(default_factory=dict)

    def run(self, *arguments: str) -> str:
        """Its output, or `RefusedError`."""
        if arguments not in self._cache:
            answer = subprocess.run([self.binary, *arguments], capture_output=True, text=True, timeout=60)
            if answer.returncode:
                raise RefusedError(answer.stderr + answer.stdout)
            self._cache[arguments] = answer.stdout
        return self._cache[arguments]

    def text(self, chart: Path, values: Path | None = None, **sets: str) -> str:
        """The rendered manifests; `a__b="x"` stands for `--set a.b=x`."""
        options = [f"--set={name.replace('__', '.')}={value}" for name, value in sets.items()]
        files = [f"--values={values}"] if values else []
        where = ["--namespace", NAMESPACE, "--kube-version", KUBERNETES]
        return self.run("template", "demo", str(chart), *where, *files, *options)

    def render(self, chart: Path, values: Path | None = None, **sets: str) -> list[Manifest]:
        """The same as objects."""
        return [m for m in yaml.safe_load_all(self.text(chart, values, **sets)) if m]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """By name."""
    return {m["metadata"]["name"]: m for m in manifests if m["kind"] == kind}


def pods(manifests: list[Manifest]) -> Iterator[tuple[str, Mapping[str, str], Manifest]]:
    """`(name, labels, spec)` of every pod that would run."""
    for manifest in manifests:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        if manifest["kind"] == "Pod":
            yield name, manifest["metadata"]["labels"], manifest["spec"]
        elif manifest["kind"] in ("Deployment", "StatefulSet"):
            template = manifest["spec"]["template"]
            yield name, template["metadata"]["labels"], template["spec"]


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every container, named after its pod."""
    for name, _, spec in pods(manifests):
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{name}/{container['name']}", container
