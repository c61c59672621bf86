"""`dynamo convert FILE…`: pipelines from files of other systems."""

from __future__ import annotations

import sys
from pathlib import Path

import click

EPILOG = """\b
Examples:
  dynamo convert graph.yaml > pipeline.yaml
  dynamo convert compose.yaml -o pipeline.yaml
  kubectl get deployment vllm -o yaml | dynamo convert -

\b
Reads DynamoGraphDeployment (NVIDIA Dynamo), LLMInferenceService (KServe),
Model (KubeAI), Deployment or StatefulSet of a model server, docker-compose.

\b
Exit codes: 0 converted (what was left out is on standard error), 1 a file
can't be converted, 2 usage.
"""
_MOST_BYTES = 1 << 20


@click.command("convert", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default: print.")
def convert(files: tuple[Path, ...], output: Path | None) -> None:
    """Write pipelines for FILES of other systems. `-` reads standard input."""
    from dynamo.cli.conversion import conversion
    from dynamo.cli.conversion.draft import ConversionError

    texts = []
    for file in files:
        try:
            converted = conversion.convert(_read(file))
        except ConversionError as error:
            raise click.ClickException(f"{file}: {error}") from None
        texts.append(converted.text)
        for remark in converted.remarks:
            click.echo(f"{file}: {remark}", err=True)
    text = "---\n".join(texts)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} can't be written: {error.strerror}") from None
    click.echo(f"{output} is written; check it, then: dynamo apply {output}", err=True)


def _read(file: Path) -> str:
    from dynamo.cli.conversion.draft import ConversionError

    try:
        stream = sys.stdin.buffer if str(file) == "-" else file.open("rb")
        with stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConversionError(f"has more than {_MOST_BYTES >> 20} MB")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConversionError("is no UTF-8 text") from None
    except OSError as error:
        raise ConversionError(f"can't be read: {error.strerror}") from None
