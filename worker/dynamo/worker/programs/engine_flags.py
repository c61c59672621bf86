"""Flags that belong to an engine: everything that a worker program doesn't know becomes an engine argument. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

_VERBOSE: Final = re.compile("-v{2,}")
"""`-v` several times in one word."""


def divide(words: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return the words of our own flags, and all others. `own`: flag to whether it takes a value."""
    mine: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if flag not in own and not ("-v" in own and _VERBOSE.fullmatch(word)):
            others.append(word)
            continue
        mine.append(word)
        if own.get(flag) and not equals and rest:
            mine.append(rest.pop(0))
    return mine, others


def engine_arguments(words: Sequence[str], short: Mapping[str, str]) -> dict[str, Any]:
    """Return `--max-model-len 4096 --no-enable-prefix-caching` as `{"max_model_len": 4096, "enable_prefix_caching".

    False}`.

    A flag without a value is true, with several a list; numbers, `true`, objects and lists are read as JSON, the
    rest is text. `short` names spellings such as `-dp`. Raises `click.UsageError` for a word that belongs to no
    flag.
    """
    arguments: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = short.get(flag) or _name(flag)
        values = [value] if equals else []
        while not equals and rest and not _is_flag(rest[0]):
            values.append(rest.pop(0))
        if not values and flag.startswith("--no-") and flag not in short:
            arguments[_name("--" + flag.removeprefix("--no-"))] = False
        else:
            arguments[name] = True if not values else _value(values[0]) if len(values) == 1 else [*map(_value, values)]
    return arguments


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _name(flag: str) -> str:
    if not flag.startswith("--") or flag == "--":
        raise click.UsageError(f"{flag!r} belongs to no flag; the engine's own flags are written --name value")
    return flag.removeprefix("--").replace("-", "_")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
