"""`dynamo up FILE`: the pipelines of a file as processes of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

EPILOG = """\b
Examples:
  dynamo up examples/quickstart.yaml            a real model on http://127.0.0.1:8000
  dynamo up examples/mocker.yaml --http-port 0  on a free port, which is printed
  dynamo up pipeline.yaml -v                    with every log line
  dynamo up pipeline.yaml -d                    without this shell; dynamo down ends it

\b
Ctrl-C once ends in order, twice ends now. Exit codes: 0 ended by SIGTERM, 1 failed, 2 usage, 130 interrupted.
"""


class _PipelineFile(click.Path):
    """A pipeline file's path; it refuses a model's with the command that serves it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).endswith(".gguf"):
            self.fail(f"{value} is a model, not a pipeline file. Serve it: dynamo run in=http {value}", param, ctx)
        if not os.path.lexists(value):
            self.fail(
                f"File {str(value)!r} does not exist. `dynamo example` lists pipeline files to begin with", param, ctx
            )
        return super().convert(value, param, ctx)


@click.command("up", epilog=EPILOG)
@click.argument("file", type=_PipelineFile(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--http-port", type=click.IntRange(0, 65535), envvar="DYN_HTTP_PORT", show_envvar=True,
    help="Port of the first pipeline's frontend; 0 picks a free one. Default: the file's (8000).",
)  # fmt: skip
@click.option(
    "--http-host", default="127.0.0.1", envvar="DYN_HTTP_HOST", show_envvar=True, show_default=True,
    help="Address to listen on; 0.0.0.0 opens it to other machines.",
)  # fmt: skip
@click.option("-d", "--detach", is_flag=True, help="Go on without this shell once it serves; dynamo down ends it.")
@click.option("--own-lines-only", is_flag=True, hidden=True, help="Show no line of a part.")
@click.option("-v", "--verbose", count=True, help="Show every log line, not only warnings and errors.")
def up(file: Path, http_port: int | None, http_host: str, detach: bool, own_lines_only: bool, verbose: int) -> None:
    """Run the pipelines of FILE on this machine, with etcd and NATS of their own.

    Uses running servers where ETCD_ENDPOINTS and NATS_SERVER, or the file, name them.
    """
    import asyncio

    from dynamo.cli.commands.files.pipeline_files import load_file
    from dynamo.cli.commands.upkeep.variables import misspelt_in
    from dynamo.cli.diagnosis.environment import notes
    from dynamo.cli.local.display import OwnLinesDisplay, make_display
    from dynamo.cli.local.executor import FileRun, Options
    from dynamo.cli.local.infrastructure import UpError
    from dynamo.cli.local.state import state_home

    pipelines = load_file(file)
    if detach:
        from dynamo.cli.commands.upkeep.detached import run_detached

        words = [str(file), "--http-host", http_host, *(["-v"] if verbose else [])]
        words += [] if http_port is None else ["--http-port", str(http_port)]
        raise SystemExit(run_detached(words, [p.name for p in pipelines], state_home(os.environ)))
    options = Options(file, state_home(os.environ), http_host, http_port, verbose > 0)
    display = OwnLinesDisplay() if own_lines_only else make_display(sys.stdout)
    for note in notes(misspelt_in(os.environ)):
        display.say(f"note: {note}")
    try:
        code = asyncio.run(FileRun(options, pipelines, display).run())
    except UpError as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)
