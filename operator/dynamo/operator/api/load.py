"""Pipeline files: YAML text to checked `DynamoPipeline`s, or everything that is wrong with it.

Used by `dynamo up`, `dynamo validate` and the tests of the examples. All problems are
reported at once, each with the line, the field and the remedy.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from dynamo.operator.api import rules, validation_errors
from dynamo.operator.api.shown import TEXT_CHARACTERS, shown, shown_message, shown_path, shown_text
from dynamo.operator.api.v1alpha1 import API_VERSION, KIND, DynamoPipeline
from dynamo.operator.api.yaml_documents import Document, YamlError, read_documents

_NVIDIA_KIND: Final = "DynamoGraphDeployment"
"""NVIDIA Dynamo's own resource."""
SHOWN: Final = 100
"""Problems that the error's text tells; nobody mends more at once."""
_KINDS: Final = 8
"""Kinds of other objects that a sentence names."""


class FileProblem(NamedTuple):
    """A problem in a file; `line` counts from 1, 0 where there is none."""

    source: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        message = shown_message(self.message)
        return f"{place}: {shown_path(self.path)}: {message}" if self.path else f"{place}: {message}"


class PipelineFileError(Exception):
    """A file without usable pipelines; `problems` has all reasons."""

    def __init__(self, problems: Iterable[FileProblem]) -> None:
        self.problems = tuple(problems)
        lines, room = [], TEXT_CHARACTERS
        for line in map(str, self.problems[:SHOWN]):
            room -= len(line)
            if room < 0:
                break
            lines.append(line)
        if more := len(self.problems) - len(lines):
            lines.append(f"... and {more} more problems")
        super().__init__("\n".join(lines))


def load_pipelines(text: str, source: str = "<text>") -> list[DynamoPipeline]:
    """Return the pipelines of a YAML text, in order; raises `PipelineFileError` naming every problem.

    Documents that are other Kubernetes objects (a Secret beside its pipeline, say) are passed over.
    """
    try:
        documents = read_documents(text)
    except YamlError as problem:
        raise PipelineFileError([FileProblem(source, problem.line, problem.path, problem.message)]) from None
    ours = [d for d in documents if not _is_foreign(d.data)]
    if not ours:
        raise PipelineFileError([FileProblem(source, 0, "", _without_pipelines(documents))])
    problems: list[FileProblem] = []
    pipelines = []
    for document in ours:
        pipeline, new_problems = _load_one(document)
        problems += [FileProblem(source, document.line_of(p.path), p.path, p.message) for p in new_problems]
        pipelines.append((document, pipeline))
    problems += _same_names(pipelines, source)
    if problems:
        raise PipelineFileError(sorted(problems, key=lambda p: p.line))
    return [p for _, p in pipelines if p is not None]


def _without_pipelines(documents: Iterable[Document]) -> str:
    kinds = sorted({str(document.data["kind"]) for document in documents})
    names = ", ".join([shown_text(kind) for kind in kinds[:_KINDS]] + ["..."] * (len(kinds) > _KINDS))
    if _NVIDIA_KIND in kinds:
        return f"contains {names}, not {KIND}: to migrate it, see docs/migrate/from-dynamo.md"
    contents = f"contains {names}, not" if kinds else "contains no"
    return f"{contents} {KIND}: start with `kind: {KIND}`"


def _load_one(document: Document) -> tuple[DynamoPipeline | None, list[rules.Problem]]:
    problems = [rules.Problem(p.path, p.message) for p in document.problems]
    problems += _header_problems(document.data)
    if problems:
        return None, problems
    try:
        pipeline = DynamoPipeline.model_validate_json(json.dumps(document.data))
    except ValidationError as error:
        return None, validation_errors.explain(error, document.data, DynamoPipeline)
    return pipeline, rules.check(pipeline)


def _is_foreign(data: Any) -> bool:
    """Return whether this is another Kubernetes object, not a pipeline with a typo in its header."""
    if not isinstance(data, dict):
        return False
    version, kind = data.get("apiVersion"), data.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    close = len(kind) < 2 * len(KIND) and difflib.get_close_matches(kind, [KIND], cutoff=0.75)
    return not version.startswith("dynamo.dev/") and not close


def _header_problems(data: Any) -> list[rules.Problem]:
    if not isinstance(data, dict):
        return [
            rules.Problem(
                "", f"is not a {KIND} but {validation_errors.kind_of(data)}: start with `apiVersion: {API_VERSION}`"
            )
        ]
    wanted = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        rules.Problem(
            key, f"must be {value}, not {shown(data[key])}" if key in data else f"is required: add `{key}: {value}`"
        )
        for key, value in wanted.items()
        if data.get(key) != value
    ]


def _same_names(documents: list[tuple[Document, DynamoPipeline | None]], source: str) -> list[FileProblem]:
    first: dict[tuple[str | None, str], int] = {}
    problems = []
    for document, pipeline in documents:
        if pipeline is None:
            continue
        line = document.line_of("metadata.name")
        other = first.setdefault((pipeline.metadata.namespace, pipeline.name), line)
        if other != line:
            message = f"{shown(pipeline.name)} is already the name of the pipeline at line {other}: rename one"
            problems.append(FileProblem(source, line, "metadata.name", message))
    return problems
