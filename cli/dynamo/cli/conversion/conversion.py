"""From the text of other systems' files to pipelines: every one is checked before it is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from dynamo.cli.conversion.draft import ConversionError, Draft, Remark, mapping
from dynamo.cli.conversion.kinds import READERS, compose
from dynamo.operator.api.load import PipelineFileError, load_pipelines
from dynamo.operator.api.yaml_documents import YamlError, read_documents


class Converted(NamedTuple):
    """What became of a file."""

    text: str
    """Pipelines as YAML; empty where it has nothing that could be one."""
    remarks: tuple[Remark, ...]


def convert(text: str) -> Converted:
    """Return the pipelines of a file; raises `ConversionError` for what can't be read or can't be one."""
    try:
        documents = [mapping(document.data) for document in read_documents(text)]
    except YamlError as error:
        raise ConversionError(f"line {error.line}: {error.message}") from None
    drafts: list[Draft] = []
    skipped: list[Remark] = []
    for document in documents:
        kind = str(document.get("kind") or "")
        if (reader := READERS.get(kind)) is not None:
            drafts.append(reader(document))
        elif not kind and "services" in document:
            drafts.append(compose(document))
        elif document:
            skipped.append(
                Remark(kind[:60] or "a document without kind", "is nothing that becomes a pipeline: left out")
            )
    if not drafts:
        raise ConversionError(f"has none of {', '.join(READERS)} and no docker-compose services")
    texts = [_written(draft.document()) for draft in drafts]
    return Converted("---\n".join(texts), (*skipped, *(remark for draft in drafts for remark in draft.remarks)))


def _written(document: dict[str, Any]) -> str:
    """Return a pipeline's YAML; what its source has that no pipeline may have is named."""
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
    try:
        load_pipelines(text, document["metadata"]["name"])
    except PipelineFileError as error:
        problems: Sequence[Any] = error.problems
        lines = "; ".join(f"{problem.path}: {problem.message}" for problem in problems[:5])
        raise ConversionError(f"what it becomes is no valid pipeline: {lines}") from None
    return text
