"""The objects of a file as they are sent: every document as it was written, checked first as `dynamo validate` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from dynamo.cli.cluster.errors import ClusterError
from dynamo.operator.api.load import FileProblem, PipelineFileError, load_pipelines
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND, DynamoPipeline
from dynamo.operator.api.yaml_documents import read_documents

Manifest = dict[str, Any]


class Named(NamedTuple):
    """A document, and the namespace that it goes to."""

    manifest: Manifest
    namespace: str

    @property
    def is_pipeline(self) -> bool:
        """Tell whether it is one of ours."""
        return self.manifest.get("apiVersion") == API_VERSION and self.manifest.get("kind") == KIND

    @property
    def name(self) -> str:
        """Return the object's name."""
        return str(self.manifest["metadata"]["name"])


def read_text(file: Path) -> tuple[str, str]:
    """Return text and what to call it; `-` is standard input."""
    if str(file) == "-":
        return sys.stdin.read(), "<stdin>"
    try:
        return file.read_text(encoding="utf-8"), str(file)
    except UnicodeDecodeError as error:
        raise PipelineFileError([FileProblem(str(file), 0, "", f"is no UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        raise PipelineFileError([FileProblem(str(file), 0, "", f"can't be read: {error.strerror}")]) from None


def manifests(text: str, source: str) -> list[Manifest]:
    """Return every object of the text, in order, Lists taken apart; raises `PipelineFileError` with all problems."""
    load_pipelines(text, source)
    problems, objects = [], []
    for document in read_documents(text):
        for manifest in _unpacked(document.data):
            if _has_head(manifest):
                objects.append(manifest)
            else:
                message = "an object needs apiVersion, kind and metadata.name"
                problems.append(FileProblem(source, document.line_of(""), "", message))
    if problems:
        raise PipelineFileError(problems)
    return objects


def _unpacked(data: Any) -> Iterator[Any]:
    if isinstance(data, dict) and data.get("kind") == "List" and isinstance(data.get("items"), list):
        yield from data["items"]
    else:
        yield data


def _has_head(manifest: Any) -> bool:
    metadata = manifest.get("metadata") if isinstance(manifest, dict) else None
    return (
        isinstance(metadata, dict)
        and all(isinstance(manifest.get(key), str) for key in ("apiVersion", "kind"))
        and isinstance(metadata.get("name"), str)
    )


def placed(manifests: Iterable[Manifest], asked: str | None, default: str) -> list[Named]:
    """Give each its namespace: its own, else the one asked for, else the context's; two that differ are a mistake."""
    result = []
    for manifest in manifests:
        own = manifest["metadata"].get("namespace")
        if own and asked and own != asked:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise ClusterError(
                f"{name} has namespace {own} in the file, but you said -n {asked}: leave one of both away"
            )
        result.append(Named(manifest, own or asked or default))
    return result


def pipelines_of(objects: Iterable[Named]) -> list[DynamoPipeline]:
    """Return ours among objects that were checked."""
    return [DynamoPipeline.model_validate_json(json.dumps(one.manifest)) for one in objects if one.is_pipeline]


def report(error: PipelineFileError, source: Path, outcome: str) -> click.ClickException:
    """Print every problem on standard error; returns what to raise then."""
    for problem in error.problems:
        click.echo(str(problem), err=True)
    count = len(error.problems)
    called = "<stdin>" if str(source) == "-" else source
    return click.ClickException(f"{called} has {count} problem{'s' if count > 1 else ''}: {outcome}")
