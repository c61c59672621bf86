"""Calls that are JSON: reading them strictly, writing their arguments so that every client can read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from dynamo.llm.parsers.call_spans import LONGEST_NAME
from dynamo.llm.parsers.events import Call, Tools

Read = Callable[[str, Tools], list[Call] | None]
"""The calls of a whole block of text; None where it is none."""


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"{text} is too large")
    return value


def loads(text: str) -> Any:
    """Read JSON; `ValueError` where it is none, or holds what could not be written again."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: Any) -> str:
    """Write JSON; characters as they are, except halves of surrogate pairs, which have no UTF-8 form."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def in_turn(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """Return the matches that the text consists of, with white space between them; None where there is anything else.

    Each begins where the last one ended, so what a model repeats without end is looked at once.
    """
    matches: list[re.Match[str]] = []
    text, at = text.strip(), 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None or match.end() == at:
            return None
        matches.append(match)
        at = match.end() + len(_SPACE.match(text, match.end())[0])  # type: ignore[index] # it always matches
    return matches


_SPACE: Final = re.compile(r"\s*")


def writable(name: str) -> bool:
    """Tell whether a name is one, of a bounded length, and has a UTF-8 form."""
    return len(name) <= LONGEST_NAME and bool(name.strip()) and not any("\ud800" <= char <= "\udfff" for char in name)


def arguments_of(value: Any) -> str | None:
    """Return arguments as the object that they are, or the text of one; None where they are neither."""
    if value is None:
        return "{}"
    if isinstance(value, str):
        try:
            value = loads(value) if value.strip() else {}
        except ValueError:
            return None
    try:
        return dumps(value) if isinstance(value, dict) else None
    except RecursionError:  # what could just be read may be just too deep to be written
        return None


def call_of(item: Any) -> Call | None:
    """Return `{"name": …, "arguments" or "parameters": …}` as a call."""
    if not isinstance(item, Mapping) or not isinstance(name := item.get("name"), str) or not writable(name):
        return None
    arguments = arguments_of(item.get("arguments", item.get("parameters")))
    return None if arguments is None else Call(name, arguments)


def calls_of(text: str) -> list[Call] | None:
    """Return one JSON object or a list of them; None where one of them is no call, or there is none."""
    try:
        value = loads(text)
    except ValueError:
        return None
    calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
    readable = [call for call in calls if call is not None]
    return readable if readable and len(readable) == len(calls) else None


def between(opener: str, closer: str) -> Read:
    """Return what reads the JSON between two markers; the second may be missing at the end of a text."""

    def read(text: str, tools: Tools) -> list[Call] | None:
        return calls_of(text.removeprefix(opener).removesuffix(closer))

    return read


def behind(*openers: str) -> Read:
    """Return what reads the JSON behind one of several markers. Without one, only a call of a known tool is a call."""

    def read(text: str, tools: Tools) -> list[Call] | None:
        for opener in openers:
            if text.startswith(opener):
                return calls_of(text.removeprefix(opener))
        calls = calls_of(text)
        return calls if calls is not None and all(call.name in tools for call in calls) else None

    return read
