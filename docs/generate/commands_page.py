"""Writes docs/reference/cli.md out of the parsers: `make generate` writes it again.

The parsers are the programs' own, so a flag, a default or an example can't be here and not there. What several
programs have alike stands once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from docs.generate import help_text
from docs.generate.flag_entries import grouped, item
from docs.generate.help_text import Block, Prose
from docs.generate.markdown import anchor, prose, table

from dynamo.cli.main import dynamo
from dynamo.cli.run import main as run
from dynamo.frontend import process as frontend
from dynamo.operator import main as operator
from dynamo.router import main as router
from dynamo.runtime.process.legacy_flags import FlagCommand
from dynamo.worker import main as worker
from dynamo.worker.programs import entry

TITLE: Final = """# Command line reference

Made from the programs' own parsers by `make generate`; don't edit it by hand.

Every program answers `--help`, and `dynamo COMMAND --help`. A value comes from the flag, else from the environment
variable, else from the default. Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted. What only the environment
sets (etcd, NATS, logs) stands in [configuration.md](configuration.md); flags of 2025 and 2026 that have another
name now, in [compatibility.md](compatibility/index.md).
"""
_FILE: Final = re.compile(r"\b(?:docs|charts)/[\w/-]+\.md\b")
"""Pages that a help text names."""


def programs() -> dict[str, click.Command | argparse.ArgumentParser]:
    """Return every program by what is typed; commands of `dynamo` come right after it."""
    context = click.Context(dynamo, info_name="dynamo", **dynamo.context_settings)
    names = [name for name in dynamo.list_commands(context) if name != "run"]  # it is dynamo-run
    commands = {f"dynamo {name}": dynamo.get_command(context, name) for name in names}
    return {
        "dynamo": dynamo,
        **{name: command for own, group in commands.items() for name, command in _with_own(own, group)},
        "dynamo-run": run.command(),
        "dynamo-frontend": frontend.make_command(),
        "dynamo-worker": worker.make_command(),
        "python -m dynamo.router": router.make_command(),
        **{f"python -m dynamo.{engine}": entry.make_command(engine) for engine in entry.TITLES},
        "dynamo-operator": operator.make_parser(),
    }


def _with_own(name: str, command: click.Command | None) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, and those below it."""
    if command is None:
        return
    yield name, command
    if isinstance(command, click.Group):
        yield from ((f"{name} {below}", own) for below, own in command.commands.items())


ALSO: Final[Mapping[str, str]] = {
    "dynamo-run": "Also: `dynamo run`.",
    "dynamo-frontend": "Also: `python -m dynamo.frontend`.",
    "dynamo-worker": "Also: `python -m dynamo.worker`.",
}


def render() -> str:
    """Write the whole page."""
    commands = programs()
    shown: dict[str, str] = {}
    parts = [TITLE, _contents(commands)]
    for name, program in commands.items():
        parts.append(f"## {name}\n")
        parts += _parser(program) if isinstance(program, argparse.ArgumentParser) else _command(name, program, shown)
    return "\n".join(parts)


def _contents(names: Sequence[str] | Mapping[str, object]) -> str:
    return "".join(f"- [{name}](#{anchor(name)})\n" for name in names)


def _command(name: str, command: click.Command, shown: dict[str, str]) -> Iterator[str]:
    context = click.Context(command, info_name=name, **command.context_settings)
    yield from _texts(command.help or "")
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    if name in ALSO:
        yield ALSO[name] + "\n"
    if isinstance(command, click.Group):
        yield _commands(command, context)
    yield from _options(name, command, context, shown)
    yield from _texts(command.epilog or "")


def _commands(group: click.Group, context: click.Context) -> str:
    rows = [
        (f"[{name}](#{anchor(f'{context.info_name} {name}')})", command.get_short_help_str(200))
        for name in group.list_commands(context)
        if (command := group.get_command(context, name)) is not None
    ]
    return table(("command", "purpose"), rows)


def _options(name: str, command: click.Command, context: click.Context, shown: dict[str, str]) -> Iterator[str]:
    """Yield the options; those of the servers stand on the page of the configuration."""
    if not any(isinstance(param, click.Option) and not param.hidden for param in command.params):
        return
    if isinstance(command, FlagCommand):
        yield f"Flags and variables: [configuration](configuration.md#{anchor(name)}).\n"
        return
    text = "\n\n".join(grouped(command, context))
    if text in shown:
        yield f"Its flags are those of [{shown[text]}](#{anchor(shown[text])}).\n"
    elif text:
        shown[text] = name
        yield text + "\n"


def _texts(text: str) -> Iterator[str]:
    for part in help_text.parts(text):
        yield _prose(part.text) if isinstance(part, Prose) else _block(part)


def _prose(text: str) -> str:
    return prose(_FILE.sub(lambda path: f"[{path[0]}](../../{path[0]})", text)) + "\n"


def _block(block: Block) -> str:
    said = " ".join(block.title.split())
    title = f"{said}{'' if said.endswith((':', '.')) else ':'}\n\n" if said not in ("", "Examples:") else ""
    if not block.typed:
        return f"{title}```text\n" + "\n".join(block.lines) + "\n```\n"
    examples = [help_text.example(line) for line in block.lines]
    width = max(len(command) for command, _ in examples)
    lines = (f"{command.ljust(width)}  # {said}" if said else command for command, said in examples)
    return f"{title}```sh\n" + "\n".join(lines) + "\n```\n"


def _parser(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"{parser.description}\n"
    yield f"```text\n{' '.join(parser.format_usage().removeprefix('usage: ').split())}\n```\n"
    actions = [action for action in parser._actions if action.dest not in ("help", "version")]
    yield (
        "\n".join(
            item(action.option_strings, [_kind(action), f"default `{action.default}`"], action.help or "")
            for action in actions
        )
        + "\n"
    )


def _kind(action: argparse.Action) -> str:
    return {int: "whole number", Path: "path"}.get(action.type, "text")  # type: ignore[call-overload, no-any-return]
