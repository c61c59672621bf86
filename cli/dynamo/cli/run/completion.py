"""Tab after `dynamo-run`: the words of in= and out=, flags, and files.

`eval "$(_DYNAMO_RUN_COMPLETE=bash_source dynamo-run)"` (or `zsh_source`, `fish_source`) turns it on; the script
that it prints calls `dynamo-run` again at each Tab, which `main.py` hands over to here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from dynamo.cli.run.grammar import DYN, ENGINES
from dynamo.cli.run.settings import RunSettings
from dynamo.runtime.process.settings import options

VARIABLE: Final = "_DYNAMO_RUN_COMPLETE"
WORDS: Final = (
    *(f"in={name}" for name in ("text", "stdin", "http", "grpc", "batch:", "dyn://", "none")),
    *(f"out={name}" for name in (*ENGINES, "echo", "openai:http://", "pystr:", "pytok:", DYN)),
)


class Word(click.types.StringParamType):
    """in=, out=, or the model."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        offered = offers(ctx.params.get("words") or (), incomplete)
        return [CompletionItem(word) for word in offered] or [CompletionItem(incomplete, type="file")]


def offers(before: Sequence[str], incomplete: str) -> list[str]:
    """Return what may stand where `incomplete` does; bash takes `in=h` for the three words `in`, `=` and `h`."""
    split = [word for word in before[-2:] if word != "="]
    side = f"{split[-1]}=" if before and split and split[-1] in ("in", "out") else ""
    return [word.removeprefix(side) for word in WORDS if word.startswith(side + incomplete)]


def flags_and_words(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Offer the same for the words of `dynamo run`, which takes them unparsed."""
    if incomplete.startswith("-"):
        names = (name for option in options(RunSettings) for name in option.opts)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]
    offered = offers(ctx.params.get("words") or (), incomplete)
    return [CompletionItem(word) for word in offered] or [CompletionItem(incomplete, type="file")]


def complete() -> None:
    """Answer the shell and leave."""
    words = click.Argument(["words"], nargs=-1, type=Word())
    command = click.Command("dynamo-run", params=[words, *options(RunSettings)])
    command.main(prog_name="dynamo-run", complete_var=VARIABLE)
