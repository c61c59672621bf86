"""Pipeline files: YAML text to checked `DynamoPipeline`s, or everything that is wrong with it.

Used by `dynamo up`, `dynamo validate` and the tests of the examples. All problems are
reported at once, each with the line, the field and the remedy.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import ValidationError

from dynamo.operator.api import explain, rules
from dynamo.operator.api.documents import Document, YamlError, read_documents
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND, DynamoPipeline


class FileProblem(NamedTuple):
    """One thing wrong with a file; `line` counts from 1, 0 where there is none."""

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class PipelineFileError(Exception):
    """A file that holds no usable pipelines; `problems` has all reasons."""

    def __init__(self, problems: Iterable[FileProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load_pipelines(text: str, source: str = "<text>") -> list[DynamoPipeline]:
    """The pipelines of a YAML text, in order; raises `PipelineFileError` naming every problem.

    Documents that are other Kubernetes objects (a Secret beside its pipeline, say) are passed over.
    """
    try:
        documents = read_documents(text)
    except YamlError as problem:
        raise PipelineFileError([FileProblem(source, problem.line, problem.path, problem.message)]) from None
    ours = [d for d in documents if not _is_foreign(d.data)]
    if not ours:
        raise PipelineFileError([FileProblem(source, 0, "", f"holds no {KIND}: start with `kind: {KIND}`")])
    problems: list[FileProblem] = []
    pipelines = []
    for document in ours:
        pipeline, found = _load_one(document)
        problems += [FileProblem(source, document.line_of(p.path), p.path, p.message) for p in found]
        pipelines.append((document, pipeline))
    problems += _same_names(pipelines, source)
    if problems:
        raise PipelineFileError(sorted(problems, key=lambda p: p.line))
    return [p for _, p in pipelines if p is not None]


def _load_one(document: Document) -> tuple[DynamoPipeline | None, list[rules.Problem]]:
    problems = [rules.Problem(p.path, p.message) for p in document.problems]
    problems += _header_problems(document.data)
    if problems:
        return None, problems
    try:
        pipeline = DynamoPipeline.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        return None, explain.explain(error, document.data, DynamoPipeline)
    return pipeline, rules.check(pipeline)


def _is_foreign(data: Any) -> bool:
    """Another Kubernetes object, not a pipeline with a slip of the pen in its header."""
    if not isinstance(data, dict):
        return False
    version, kind = data.get("apiVersion"), data.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return not version.startswith("dynamo.dev/") and not difflib.get_close_matches(kind, [KIND], cutoff=0.75)


def _header_problems(data: Any) -> list[rules.Problem]:
    if not isinstance(data, dict):
        return [rules.Problem("", f"is no {KIND} but {explain.kind_of(data)}: start with `apiVersion: {API_VERSION}`")]
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        rules.Problem(
            key, f"must be {value}, not {data[key]!r}" if key in data else f"is required: add `{key}: {value}`"
        )
        for key, value in wanted.items()
        if data.get(key) != value
    ]


def _same_names(found: list[tuple[Document, DynamoPipeline | None]], source: str) -> list[FileProblem]:
    first: dict[tuple[str | None, str], int] = {}
    problems = []
    for document, pipeline in found:
        if pipeline is None:
            continue
        line = document.line_of("metadata.name")
        other = first.setdefault((pipeline.metadata.namespace, pipeline.name), line)
        if other != line:
            message = f"{pipeline.name!r} is already the name of the pipeline at line {other}: rename one"
            problems.append(FileProblem(source, line, "metadata.name", message))
    return problems
