"""Flags as the references list them: spelling, type, default and variable, then the sentence of `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import click
from docs.generate.markdown import code, prose

from dynamo.runtime.process.legacy_flags import FlagCommand
from dynamo.runtime.process.settings import SettingOption

UNTOLD: Final = ("help", "version")
_FILE: Final = re.compile(r"\bdocs/([\w/-]+\.md)\b")


def item(spellings: Iterable[str], about: Iterable[str], text: str) -> str:
    """Return one flag or variable as an item of a list."""
    details = ", ".join(filter(None, about))
    linked = _FILE.sub(lambda found: f"[{found[1].rpartition('/')[2]}](../{found[1]})", " ".join(text.split()))
    shown = linked.replace("<", "&lt;").rstrip(".")
    names = ", ".join(map(code, spellings))
    return prose(f"- {names}" + (f" ({details})" if details else "") + f": {shown}.", indent="  ")


def grouped(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the options in groups, each under its title, as `--help` has them."""
    sections: dict[str, list[str]] = {title: [] for title in getattr(command, "groups", ())}
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and param.name not in UNTOLD:
            title = command.group_of(param) if isinstance(command, FlagCommand) else ""
            sections.setdefault(title, []).append(_option(param, context))
    for title, items in sections.items():
        if items:
            yield (f"**{title}**\n\n" if title and len(sections) > 1 else "") + "\n".join(items)


def _option(option: click.Option, context: click.Context) -> str:
    if isinstance(option, SettingOption):
        option = option.documented()
    variables = (option.envvar,) if isinstance(option.envvar, str) else option.envvar or ()
    default = _default(option)
    named = f"variable{'s' if len(variables) > 1 else ''} {', '.join(map(code, variables))}" if variables else ""
    about = (_value(option, context), f"default {default}" if default else "", named)
    return item((*option.opts, *option.secondary_opts), about, option.help or "")


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
