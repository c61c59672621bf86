"""`dynamo`: the command of all commands. Each is imported only when it is called.

Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted. A user's mistake is one sentence,
never a traceback.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dynamo.cli.ctrl_c import leave_on_ctrl_c
from dynamo.cli.help_text import folded

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMMANDS: Final = {
    "up": ("dynamo.cli.commands.up:up", "Run the pipelines of FILE on this machine."),
    "down": ("dynamo.cli.commands.upkeep.down:down", "End what `dynamo up` runs on this machine."),
    "ps": ("dynamo.cli.commands.ps:ps", "List the parts of every pipeline that is up."),
    "logs": ("dynamo.cli.commands.logs:logs", "Print what a part, a component or a pipeline wrote."),
    "validate": ("dynamo.cli.commands.files.validate:validate", "Check pipeline FILES and print every problem."),
    "example": ("dynamo.cli.commands.files.example:example", "Print an example of a pipeline file."),
    "convert": ("dynamo.cli.conversion.command:convert", "Write pipelines for FILES of other systems."),
    "tasks": (
        "dynamo.cli.commands.tasks:tasks",
        "Show the asyncio tasks of a process: what each one waits for, and since when.",
    ),
    "models": ("dynamo.cli.commands.upkeep.models:models", "List, fetch and remove models of this machine."),
    "clean": ("dynamo.cli.commands.upkeep.clean:clean", "Remove what earlier runs left on this machine."),
    "doctor": (
        "dynamo.cli.commands.upkeep.doctor:doctor",
        "Say what is wrong here, in a cluster or with a pipeline, and what mends it.",
    ),
    "top": ("dynamo.cli.monitor.command:top", "Show models and workers with their load, live."),
    "console": ("dynamo.cli.monitor.console:console", "Print where the page for browsers is, or open it."),
    "explain": ("dynamo.cli.monitor.explain:explain", "Say where the time of a request went."),
    "simulate": ("dynamo.cli.commands.simulate:simulate", "Send a trace through the router to simulated engines."),
    "bench": ("dynamo.cli.load_test.command:bench", "Measure any OpenAI-compatible server: TTFT, ITL, throughput."),
    "install": ("dynamo.cli.commands.install:install", "Install or upgrade the platform in a cluster."),
    "bundle": ("dynamo.cli.bundle.command:bundle", "Put all that an installation needs into one archive."),
    "uninstall": ("dynamo.cli.commands.uninstall:uninstall", "Remove the platform from a cluster."),
    "apply": ("dynamo.cli.commands.apply:apply", "Send the pipelines of FILE to a cluster."),
    "status": ("dynamo.cli.commands.status:status", "Show the pipelines of a cluster."),
    "get-url": ("dynamo.cli.commands.get_url:get_url", "Print the URL of a pipeline that works from here."),
    "delete": ("dynamo.cli.commands.delete:delete", "Delete pipelines from a cluster."),
    "run": ("dynamo.cli.main:run", "Chat with or serve one model: the same as dynamo-run."),
    "version": ("dynamo.cli.main:show_version", "Print the version."),
    "completion": ("dynamo.cli.commands.completion:completion", "Print the completion script for SHELL."),
}
"""Where each is, and what lists of them say of it: neither `--help` nor Tab imports a command for its sentence."""

_SECTIONS = {
    "On this machine": ("up", "down", "run", "ps", "logs", "validate", "example", "convert", "models", "clean"),
    "On a Kubernetes cluster": ("install", "apply", "status", "get-url", "delete", "uninstall", "bundle"),
    "Looking closer": ("doctor", "console", "top", "explain", "tasks", "simulate", "bench"),
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

\b
`dynamo COMMAND --help` explains a command. Where to begin:
docs/get-started/laptop.md.
"""


_ELSEWHERE: Final = {
    "list": "dynamo models list (models), dynamo ps (what runs)",
    "pull": "dynamo models pull ORG/NAME",
    "rm": "dynamo models rm ORG/NAME",
    "serve": "dynamo run in=http MODEL, or dynamo up FILE",
    "stop": "dynamo down [NAME]",
    "chat": "dynamo run MODEL",
    "dashboard": "dynamo console (in a browser), dynamo top (in a terminal)",
    "help": "dynamo --help, dynamo COMMAND --help",
}
"""What other programs call things."""

_HELP: Final = ["-h", "--help"]


def _version_option(*, hidden: bool = False) -> click.Option:
    """Return the option that every command has, though only the first help tells of it."""
    return click.Option(
        ["-V", "--version"], is_flag=True, is_eager=True, expose_value=False, help="Print the version.",
        callback=lambda ctx, _, given: _version(ctx, given), hidden=hidden,
    )  # fmt: skip


class LazyGroup(click.Group):
    """Imports a command when it is asked for, and knows what was meant when it isn't one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _COMMANDS[name][1]) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names as the table has them."""
        from click.shell_completion import CompletionItem

        begun = [name for name in _COMMANDS if name.startswith(incomplete)]
        return [CompletionItem(name, help=_COMMANDS[name][1]) for name in begun] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        target, sentence = _COMMANDS[cmd_name]
        module, _, name = target.partition(":")
        command = getattr(importlib.import_module(module), name)
        if not isinstance(command, click.Command):
            return None
        # Its own: click keeps a command's help option from the first context, which may be one without this group.
        command.context_settings.setdefault("help_option_names", _HELP)
        command.short_help = sentence
        command.epilog = folded(command.epilog or "")
        if not isinstance(command, _Passing) and not any("-V" in param.opts for param in command.params):
            command.params.append(_version_option(hidden=True))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _COMMANDS:
            import difflib

            close = difflib.get_close_matches(name, [*_COMMANDS, *_ELSEWHERE], n=1)
            meant = f" Did you mean {_ELSEWHERE.get(close[0], close[0])}?" if close else ""
            meant = f" Here it is: {_ELSEWHERE[name]}" if name in _ELSEWHERE else meant
            ctx.fail(f"There is no command {name!r}.{meant}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    epilog=folded(EPILOG),
    params=[_version_option()],
    context_settings={"help_option_names": _HELP},
)
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
    except PermissionError as error:
        from dynamo.cli.local.state import state_home

        if not str(error.filename).startswith(str(state_home(os.environ))):
            raise
        way = [error.filename, *map(str, Path(error.filename).parents)]
        closed = next((place for place in reversed(way) if not os.access(place, os.X_OK)), error.filename)
        mend = f"chmod u+rwx {closed}, or set XDG_STATE_HOME to another folder"
        print(f"error: the state of pipelines can't be used: you may not open {closed}: {mend}", file=sys.stderr)
        code = 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
