"""A pipeline in the making, and what of its source has no counterpart in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MOST_REMARKS: Final = 200
_UNFIT: Final = re.compile(r"[^a-z0-9-]+")
_COMPONENT_CHARACTERS: Final = 36


class Remark(NamedTuple):
    """A part of the source that the pipeline doesn't have."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class ConversionError(Exception):
    """A document that can't become a pipeline; the text says why."""


class Draft:
    """The spec of one pipeline, filled field by field, with remarks about the rest."""

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self.name, self.namespace = as_name(name), namespace
        self.spec: dict[str, Any] = {"model": {}, "frontend": {}, "components": []}
        self.remarks: list[Remark] = []

    def remark(self, path: str, text: str) -> None:
        """Note what is left out; of very many the first ones."""
        if len(self.remarks) < MOST_REMARKS:
            self.remarks.append(Remark(path, text))

    def left_out(self, given: Mapping[str, Any], known: set[str], path: str) -> None:
        """Remark on each field of the source that nothing here reads."""
        for name in given:
            if name not in known:
                self.remark(f"{path}.{name}", "has no counterpart: left out")

    def model(self, source: str | None, path: str) -> None:
        """Set the model; components that name different ones can't be one pipeline."""
        if not source:
            return
        present = self.spec["model"].setdefault("source", source)
        if present != source:
            raise ConversionError(f"{path}: serves {source}, another part {present}: one pipeline has one model")

    def component(self, fields: dict[str, Any]) -> None:
        """Add a component under a name that no other has."""
        names = {component["name"] for component in self.spec["components"]}
        stem = as_name(str(fields.get("name") or "worker"))[:_COMPONENT_CHARACTERS].strip("-") or "worker"
        name = next(name for name in (stem, *(f"{stem[:30]}-{n}" for n in range(2, 100))) if name not in names)
        self.spec["components"].append({**fields, "name": name})

    def document(self) -> dict[str, Any]:
        """Return the pipeline as it is written to YAML; raises `ConversionError` where it has no component."""
        if not self.spec["components"]:
            raise ConversionError(f"{self.name}: has no server of a model that is known here")
        metadata = {"name": self.name} | ({"namespace": self.namespace} if self.namespace else {})
        spec = {name: value for name, value in self.spec.items() if value}
        return {"apiVersion": "dynamo.dev/v1alpha1", "kind": "DynamoPipeline", "metadata": metadata, "spec": spec}


def as_name(text: str) -> str:
    """Return a text as a name that Kubernetes takes."""
    name = _UNFIT.sub("-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"p-{name}"
    return name[:40].strip("-") or "pipeline"


def mapping(value: Any) -> dict[str, Any]:
    """Return an object of the source; empty where it is none."""
    return dict(value) if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """Return a list of the source; empty where it is none."""
    return list(value) if isinstance(value, (list, tuple)) else []
