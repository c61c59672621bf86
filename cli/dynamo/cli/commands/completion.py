"""`dynamo completion bash|zsh|fish`: the script that makes Tab work, for every program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\b
Examples:
  eval "$(dynamo completion bash)"                                        now; or in ~/.bashrc
  dynamo completion zsh > "${fpath[1]}/_dynamo"
  dynamo completion fish > ~/.config/fish/completions/dynamo.fish

\b
It completes dynamo, dynamo-run, dynamo-frontend and dynamo-worker: commands, flags, the words of in= and out=,
and files.
"""
PROGRAMS = ("dynamo", "dynamo-run", "dynamo-frontend", "dynamo-worker")


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from dynamo.cli.main import dynamo

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"{shell} is not supported")
    for program in PROGRAMS:
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        click.echo(kind(dynamo, {}, program, variable).source())
