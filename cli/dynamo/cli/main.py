"""`dynamo`: the command of all commands. Each is imported only when it is called.

Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted. A user's mistake is one sentence,
never a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

_COMMANDS = {
    "up": "dynamo.cli.commands.up:up",
    "ps": "dynamo.cli.commands.ps:ps",
    "logs": "dynamo.cli.commands.logs:logs",
    "validate": "dynamo.cli.commands.validate:validate",
    "tasks": "dynamo.cli.commands.tasks:tasks",
    "simulate": "dynamo.cli.commands.simulate:simulate",
    "install": "dynamo.cli.commands.install:install",
    "uninstall": "dynamo.cli.commands.uninstall:uninstall",
    "apply": "dynamo.cli.commands.apply:apply",
    "status": "dynamo.cli.commands.status:status",
    "get-url": "dynamo.cli.commands.get_url:get_url",
    "delete": "dynamo.cli.commands.delete:delete",
    "run": "dynamo.cli.main:run",
    "version": "dynamo.cli.main:show_version",
    "completion": "dynamo.cli.commands.completion:completion",
}

_SECTIONS = {
    "On this machine": ("up", "run", "ps", "logs", "validate"),
    "On a Kubernetes cluster": ("install", "apply", "status", "get-url", "delete", "uninstall"),
    "Looking closer": ("tasks", "simulate"),
    "This program": ("completion", "version"),
}
"""How `--help` orders them."""

_OF_CLUSTERS = ("kubernetes", "pyhelm3", "urllib3")
"""Modules that only the commands of a cluster need."""

EPILOG = """\b
Examples:
  dynamo up examples/quickstart.yaml      serve a pipeline file on this machine, until Ctrl-C
  dynamo ps                               what runs
  dynamo logs worker-0 -f                 what one part writes
  dynamo validate pipeline.yaml           check a file
  dynamo run model.gguf                   chat with one model (also: dynamo-run)

\b
On a Kubernetes cluster:
  dynamo install                          operator, CRD, etcd and NATS
  dynamo apply pipeline.yaml --wait       until it serves
  dynamo status -A                        what is there
  dynamo get-url NAME --port-forward      a port of this machine

`dynamo COMMAND --help` explains a command. Where to begin: docs/get-started/laptop.md.
"""


_HELP: Final = ["-h", "--help"]


class LazyGroup(click.Group):
    """Imports a command when it is asked for, and knows what was meant when it isn't one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            rows = [(name, command) for name in names if (command := self.get_command(ctx, name)) is not None]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in rows])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = _COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            return None
        # Its own: click keeps a command's help option from the first context, which may be one without this group.
        command.context_settings.setdefault("help_option_names", _HELP)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _COMMANDS:
            close = difflib.get_close_matches(name, _COMMANDS, n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            ctx.fail(f"There is no command {name!r}.{meant}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": _HELP, "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda ctx, _, given: _version(ctx, given),
    help="Print the version.",
)  # fmt: skip
def dynamo() -> None:
    """Serve large language models: on this machine, or on a Kubernetes cluster.

    A pipeline file says which model is served, by which engine and by how many workers. `dynamo up FILE` serves it
    here, `dynamo apply FILE` in a cluster. `dynamo run` needs no file: one model, one line.
    """


def _complete_run(ctx: click.Context, _param: click.Parameter | None, incomplete: str) -> Any:
    from dynamo.cli.run.completion import flags_and_words

    return flags_and_words(ctx, incomplete)


class _Passing(click.Command):
    """Command whose flags are those of another parser."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Any:
        return _complete_run(ctx, None, incomplete)


@click.command(
    "run",
    cls=_Passing,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete_run)
def run(words: tuple[str, ...]) -> None:
    """Chat with or serve one model: the same as dynamo-run."""
    from dynamo.cli.run.main import main as run_main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_main(list(words))


@click.command("version")
def show_version() -> None:
    """Print the version."""
    from dynamo.runtime.process.settings import installed_version

    click.echo(installed_version())


def _version(context: click.Context, given: bool) -> None:
    if given:
        from dynamo.runtime.process.settings import installed_version

        click.echo(installed_version())
        context.exit()


def leave_on_ctrl_c() -> None:
    """Let Ctrl-C end us here and now, until a command handles it.

    A KeyboardInterrupt could be swallowed where an import runs callbacks, and would be lost.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script."""
    leave_on_ctrl_c()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no é must not end us
    try:
        code = dynamo.main(args=argv if argv is None else list(argv), prog_name="dynamo", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dynamo"):
            raise  # ours, and so our mistake
        from dynamo.runtime.process.extras import install_hint

        extra = "cluster" if (error.name or "").partition(".")[0] in _OF_CLUSTERS else "cli"
        print(f"error: {error.name} is not installed: {install_hint(extra)}", file=sys.stderr)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
