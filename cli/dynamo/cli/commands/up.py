"""`dynamo up FILE`: the pipelines of a file as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click

from dynamo.cli.commands.pipeline_files import load_file

EPILOG = """\b
Examples:
  dynamo up examples/quickstart.yaml            a real model on http://127.0.0.1:8000
  dynamo up examples/mocker.yaml --http-port 0  on a free port, which is printed
  dynamo up pipeline.yaml -v                    with every log line

\b
Ctrl-C once ends in order, twice ends now. Exit codes: 0 ended by SIGTERM, 1 failed, 2 usage, 130 interrupted.
"""


@click.command("up", epilog=EPILOG, short_help="Run the pipelines of FILE on this machine.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--http-port", type=click.IntRange(0, 65535), envvar="DYN_HTTP_PORT", show_envvar=True,
    help="Port of the first pipeline's frontend; 0 picks a free one. Default: the file's (8000).",
)  # fmt: skip
@click.option(
    "--http-host", default="127.0.0.1", envvar="DYN_HTTP_HOST", show_envvar=True, show_default=True,
    help="Address to listen on; 0.0.0.0 opens it to other machines.",
)  # fmt: skip
@click.option("-v", "--verbose", count=True, help="Show every log line, not only warnings and errors.")
def up(file: Path, http_port: int | None, http_host: str, verbose: int) -> None:
    """Run the pipelines of FILE on this machine, with etcd and NATS of their own.

    Uses running servers where ETCD_ENDPOINTS and NATS_SERVER, or the file, name them.
    """
    from dynamo.cli.local.display import make_display
    from dynamo.cli.local.executor import FileRun, Options
    from dynamo.cli.local.infrastructure import UpError
    from dynamo.cli.local.state import state_home

    pipelines = load_file(file)
    options = Options(file, state_home(os.environ), http_host, http_port, verbose > 0)
    try:
        code = asyncio.run(FileRun(options, pipelines, make_display(sys.stdout)).run())
    except UpError as error:
        raise click.ClickException(str(error)) from None
    raise SystemExit(code)
