"""Writes docs/reference/cli.md out of the parsers: `make generate`, checked by tests/test_docs.py.

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
from docs.generate.help_text import Block, Prose

from dynamo.cli.main import dynamo
from dynamo.cli.run import main as run
from dynamo.frontend import process as frontend
from dynamo.operator import main as operator
from dynamo.router import main as router
from dynamo.runtime.process.legacy_flags import FlagCommand
from dynamo.runtime.process.settings import SettingOption
from dynamo.worker import main as worker
from dynamo.worker.programs import entry

TITLE: Final = """# Command line reference

Made from the programs' own parsers by `make generate`; don't edit it by hand.

Every program answers `--help`, and `dynamo COMMAND --help`. A value comes from the flag, else from the environment
variable, else from the default. Exit codes: 0 well, 1 failed, 2 usage, 130 interrupted. What only the environment
sets (etcd, NATS, logs) stands in [configuration.md](configuration.md); flags of 2025 and 2026 that have another
name now, in [compatibility.md](compatibility.md).
"""
_UNTOLD: Final = ("help", "version")
_FILE: Final = re.compile(r"\b(?:docs|charts)/[\w/-]+\.md\b")
"""Pages that a help text names."""
_HEAD: Final = "| flag | value | default | variable | |\n| --- | --- | --- | --- | --- |\n"


def programs() -> dict[str, click.Command | argparse.ArgumentParser]:
    """Return every program by what is typed; commands of `dynamo` come right after it."""
    context = click.Context(dynamo, info_name="dynamo", **dynamo.context_settings)
    names = [name for name in dynamo.list_commands(context) if name != "run"]  # it is dynamo-run
    commands = {f"dynamo {name}": dynamo.get_command(context, name) for name in names}
    return {
        "dynamo": dynamo,
        **{name: command for name, command in commands.items() if command is not None},
        "dynamo-run": run.command(),
        "dynamo-frontend": frontend.make_command(),
        "dynamo-worker": worker.make_command(),
        "python -m dynamo.router": router.make_command(),
        **{f"python -m dynamo.{engine}": entry.make_command(engine) for engine in entry.TITLES},
        "dynamo-operator": operator.make_parser(),
    }


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


def anchor(title: str) -> str:
    """Return the name that a title of a page has in links."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


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
    return "| command | |\n| --- | --- |\n" + "".join(f"| {link} | {_cell(what)} |\n" for link, what in rows)


def _options(name: str, command: click.Command, context: click.Context, shown: dict[str, str]) -> Iterator[str]:
    """Yield the options in groups, as its `--help` has them; where another program has the very same, a link to it."""
    sections: dict[str, list[str]] = {title: [] for title in getattr(command, "groups", ())}
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and param.name not in _UNTOLD:
            title = command.group_of(param) if isinstance(command, FlagCommand) else ""
            sections.setdefault(title, []).append(_row(param, context))
    text = "\n".join(
        (f"**{title}**\n\n" if title and len(sections) > 1 else "") + _HEAD + "".join(rows)
        for title, rows in sections.items()
        if rows
    )
    if not text:
        return
    if text in shown:
        yield f"Its flags are those of [{shown[text]}](#{anchor(shown[text])}).\n"
        return
    shown[text] = name
    yield text


def _row(option: click.Option, context: click.Context) -> str:
    if isinstance(option, SettingOption):
        option = option.documented()
    names = ", ".join(f"`{spelling}`" for spelling in (*option.opts, *option.secondary_opts))
    variables = (option.envvar,) if isinstance(option.envvar, str) else option.envvar or ()
    cells = (names, _value(option, context), _default(option), ", ".join(f"`{variable}`" for variable in variables))
    return "| " + " | ".join(map(_cell, (*cells, option.help or ""))) + " |\n"


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag or option.count:
        return "repeatable" if option.count else ""
    kind = option.type
    if isinstance(kind, click.Choice):
        value = ", ".join(f"`{choice}`" for choice in kind.choices)
    elif isinstance(kind, click.IntRange | click.FloatRange):
        value = f"{'whole number' if isinstance(kind, click.IntRange) else 'number'} {_range(kind)}".rstrip()
    else:
        named = {"integer": "whole number", "float": "number", "path": "path", "text": "text"}
        value = f"`{option.metavar}`" if option.metavar else named.get(kind.name, kind.name)
    return f"{value}, repeatable" if option.multiple else value


def _range(kind: click.IntRange | click.FloatRange) -> str:
    if kind.min is not None and kind.max is not None:
        return f"{kind.min} to {kind.max}"
    if kind.min is not None:
        return f"{'above' if kind.min_open else 'from'} {kind.min}"
    return f"up to {kind.max}" if kind.max is not None else ""


def _default(option: click.Option) -> str:
    """Return the default as it would be typed.

    Nothing where leaving the flag out means something that its text says.
    """
    default = option.default
    if option.count or isinstance(default, list | tuple) or repr(default).startswith("Sentinel"):
        return ""
    if option.is_flag and default in (True, False, None):
        chosen = option.opts if default else option.secondary_opts
        return f"`{chosen[0]}`" if default is not None and option.secondary_opts else ""
    return f"`{default}`" if default not in (None, "") and not callable(default) else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _texts(text: str) -> Iterator[str]:
    for part in help_text.parts(text):
        yield _prose(part.text) if isinstance(part, Prose) else _block(part)


def _prose(text: str) -> str:
    return _FILE.sub(lambda path: f"[{path[0]}](../../{path[0]})", text) + "\n"


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
    actions = [action for action in parser._actions if action.dest != "help"]
    rows = (
        (f"`{', '.join(action.option_strings)}`", _kind(action), f"`{action.default}`", "", action.help or "")
        for action in actions
    )
    yield _HEAD + "".join("| " + " | ".join(map(_cell, row)) + " |\n" for row in rows)


def _kind(action: argparse.Action) -> str:
    return {int: "whole number", Path: "path"}.get(action.type, "text")  # type: ignore[call-overload, no-any-return]


def main() -> None:
    """Write the file that is named."""
    parser = argparse.ArgumentParser(description="Write the command line reference, as Markdown.")
    parser.add_argument("file", type=Path, help="where to")
    parser.parse_args().file.write_text(render())


if __name__ == "__main__":
    main()
