"""`dynamo validate FILE…`: check pipeline files without running anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamo.operator.api.load import FileProblem
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

EPILOG = """\b
Examples:
  dynamo validate pipeline.yaml
  dynamo validate examples/*.yaml
  helm template … | dynamo validate -

\b
Exit codes: 0 all files are valid, 1 some are not, 2 usage.
"""


@click.command("validate", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
def validate(files: tuple[Path, ...], output: str) -> None:
    """Check pipeline FILES and print every problem. `-` reads standard input."""
    from dynamo.operator.api.load import PipelineFileError

    problems: list[FileProblem] = []
    for file in files:
        try:
            pipelines = _read(file)
        except PipelineFileError as error:
            problems += error.problems
        else:
            missing = [*_refused(file, pipelines), *_missing(file, pipelines)]
            problems += missing
            if output == "text" and not missing:
                click.echo(f"{file}: valid ({', '.join(p.name for p in pipelines)})")
    _report(problems, output)
    raise SystemExit(1 if problems else 0)


def _read(file: Path) -> list[DynamoPipeline]:
    from dynamo.cli.commands.files.pipeline_files import read_pipelines
    from dynamo.operator.api.load import load_pipelines

    return load_pipelines(sys.stdin.read(), "<stdin>") if str(file) == "-" else read_pipelines(file)


def _missing(file: Path, pipelines: list[DynamoPipeline]) -> list[FileProblem]:
    """Return models beside the file that aren't there, or are broken; other paths may be those of an image."""
    from dynamo.cli.local.facts.models import models
    from dynamo.operator.api.load import FileProblem

    beside = [p for p in pipelines if _is_beside(p.spec.model.source or "")]
    if not beside or str(file) == "-":
        return []
    facts = models(beside, file.resolve().parent)
    return [FileProblem(str(file), 0, "spec.model.source", fact.problem) for fact in facts if fact.problem]


def _refused(file: Path, pipelines: list[DynamoPipeline]) -> list[FileProblem]:
    """Return fields that a worker would refuse: it would fail each time that it starts."""
    from dynamo.cli.local.facts.fields import fields
    from dynamo.operator.api.load import FileProblem

    facts = fields(pipelines, file.resolve().parent)
    return [FileProblem(str(file), 0, fact.field, fact.problem) for fact in facts]


def _is_beside(source: str) -> bool:
    """Tell whether a model lies beside the file: so it says, or it is a bare name of a file."""
    return source.startswith(("./", "../")) or (source.endswith(".gguf") and "/" not in source)


def _report(problems: list[FileProblem], output: str) -> None:
    if output == "json":
        import json

        click.echo(json.dumps([p._asdict() for p in problems], ensure_ascii=False))
        return
    for problem in problems:
        click.echo(str(problem), err=True)
