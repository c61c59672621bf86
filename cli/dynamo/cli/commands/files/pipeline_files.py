"""Reading a pipeline file for a command: every problem on standard error, exit code 1."""

from __future__ import annotations

from pathlib import Path

import click

from dynamo.operator.api.load import FileProblem, PipelineFileError, load_pipelines
from dynamo.operator.api.v1alpha1 import DynamoPipeline


def read_pipelines(file: Path) -> list[DynamoPipeline]:
    """Read the pipelines of a file; raises `PipelineFileError`, also where it can't be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PipelineFileError([FileProblem(str(file), 0, "", f"is no UTF-8 text: {error.reason}")]) from None
    except OSError as error:
        raise PipelineFileError([FileProblem(str(file), 0, "", f"can't be read: {error.strerror}")]) from None
    return load_pipelines(text, str(file))


def load_file(file: Path) -> list[DynamoPipeline]:
    """Read the pipelines of a file, or end the command."""
    try:
        return read_pipelines(file)
    except PipelineFileError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        count = len(error.problems)
        raise click.ClickException(
            f"{file} has {count} problem{'s' if count > 1 else ''}: nothing was started"
        ) from None
