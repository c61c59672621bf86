"""Looks at fields of a pipeline file that only a worker would refuse: engine arguments, templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.cli.diagnosis.file_fields import FieldFact

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

_LONGEST: Final = 300
_SHOWN: Final = 60


def fields(pipelines: Sequence[DynamoPipeline], folder: Path) -> tuple[FieldFact, ...]:
    """Return what is wrong with the fields of a file's pipelines; nothing is started, and no engine is loaded."""
    return tuple(fact for pipeline in pipelines for fact in _of_pipeline(pipeline, folder))


def _of_pipeline(pipeline: DynamoPipeline, folder: Path) -> Iterator[FieldFact]:
    template = pipeline.spec.model.chat_template
    if template and (problem := _no_template(template, folder) or _refused(_compile, template)):
        yield FieldFact("spec.model.chatTemplate", pipeline.name, problem)
    for index, component in enumerate(pipeline.spec.components):
        check = _CHECKS.get(component.engine.value)
        if check and component.engine_args and (problem := _refused(check, component.engine_args)):
            yield FieldFact(f"spec.components[{index}].engineArgs", pipeline.name, problem)


def _refused(check: Callable[[Any], object], value: Any) -> str:
    """Return why a check refuses a value; empty where it takes it, or can't be made here."""
    from dynamo.runtime.errors import InvalidArgument

    try:
        check(value)
    except InvalidArgument as error:
        return str(error)[:_LONGEST]
    except ImportError:
        return ""
    return ""


def _no_template(text: str, folder: Path) -> str:
    """Say that a text has no expression, as a file's name has none: every prompt would be that text."""
    if "{" in text:
        return ""
    try:
        is_file = "\n" not in text and (folder / text).is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        return f"{text} is a file's name; the field takes the template's text: `chatTemplate: |`, then the file's lines"
    short = text[:_SHOWN].partition("\n")[0]
    return f"{short} is a file's name, or has no {{{{ … }}}} of Jinja; the field takes the template's text"


def _compile(template: str) -> None:
    from dynamo.llm.processing.chat_template import ChatTemplate

    ChatTemplate(template)


def _mocker(given: dict[str, Any]) -> None:
    from dynamo.worker.engines.mocker.arguments import read_arguments

    read_arguments(json.loads(json.dumps(given)), 64)


def _llamacpp(given: dict[str, Any]) -> None:
    from dynamo.worker.engines.llamacpp.engine import DEFAULTS, LOWEST
    from dynamo.worker.settings import checked_arguments

    checked_arguments("llamacpp", given, DEFAULTS, LOWEST)


def _mistralrs(given: dict[str, Any]) -> None:
    from dynamo.worker.engines.mistralrs.engine import DEFAULTS, LOWEST
    from dynamo.worker.settings import checked_arguments

    checked_arguments("mistralrs", given, DEFAULTS, LOWEST)


_CHECKS: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "mocker": _mocker, "llamacpp": _llamacpp, "mistralrs": _mistralrs,
}  # fmt: skip
"""Engines whose arguments can be read without the engine: vLLM's and SGLang's are read by themselves."""
