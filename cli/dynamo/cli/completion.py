"""`dynamo completion bash|zsh|fish`: the script that makes Tab work."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

EPILOG = """\b
Examples:
  eval "$(dynamo completion bash)"                                        now; or in ~/.bashrc
  dynamo completion zsh > "${fpath[1]}/_dynamo"
  dynamo completion fish > ~/.config/fish/completions/dynamo.fish
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from dynamo.cli.main import dynamo

    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"{shell} is not supported")
    click.echo(kind(dynamo, {}, "dynamo", "_DYNAMO_COMPLETE").source())
