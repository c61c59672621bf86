"""Calls in a section of special tokens (DeepSeek V3, Kimi K2), behind their names (Mistral), or as Python code."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, Final

from dynamo.llm.parsers.call_spans import LONGEST_NAME
from dynamo.llm.parsers.events import Call, Tools
from dynamo.llm.parsers.json_calls import Read, arguments_of, calls_of, dumps, in_turn, writable


def section(openers: tuple[str, ...], closers: tuple[str, ...], call: str) -> Read:
    """Return what reads calls by a regular expression with the groups `name`, `arguments` and, if any, `id`.

    Of a text that broke off, the section's end may be missing, not that of a call.
    """
    pattern = re.compile(call, re.DOTALL)

    def read(text: str, tools: Tools) -> list[Call] | None:
        for marker in openers:
            text = text.removeprefix(marker)
        for marker in closers:
            text = text.removesuffix(marker)
        matches = [_call(match) for match in in_turn(pattern, text) or ()]
        calls = [call for call in matches if call is not None]
        return calls if calls and len(calls) == len(matches) else None

    return read


def _call(match: re.Match[str]) -> Call | None:
    arguments, name = arguments_of(match["arguments"]), match["name"].strip()
    if arguments is None or not writable(name):
        return None
    own = match.groupdict().get("id")
    return Call(name, arguments, own.strip() if own and len(own) <= 2 * LONGEST_NAME else None)


_NAMED: Final = re.compile(
    r"\s*+(?P<name>[\w.\-/]++)\s*+(?:\[CALL_ID\](?P<id>\w++))?+\s*+(?:\[ARGS\])?+\s*+(?P<arguments>\{.*)", re.DOTALL
)
"""Possessive: what was taken is never given back, since three runs of space in a row were cubic."""
_STRINGS: Final = re.compile(r"""(?<=(.))(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"?|'[^'\\]*+(?:\\.[^'\\]*+)*+'?)""", re.DOTALL)
"""Strings of Python code, with the character before each."""


def read_mistral(text: str, tools: Tools) -> list[Call] | None:
    """Read `[TOOL_CALLS]` with a JSON list, as up to tokenizer v7, or one name and its arguments, as since v11."""
    body = text.removeprefix("[TOOL_CALLS]")
    if match := _NAMED.fullmatch(body):
        call = _call(match)
        return None if call is None else [call]
    return calls_of(body)


def read_python(text: str, tools: Tools) -> list[Call] | None:
    """Read `[f(a=1), g()]`, calls of known tools with keyword arguments that are plain values."""
    if _formatted(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on "\\d" is for programmers
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.List) or not tree.elts:
        return None
    try:
        calls = [_python_call(node) for node in tree.elts]
        return calls if all(call.name in tools for call in calls) else None
    except (ValueError, RecursionError):
        return None


def _formatted(text: str) -> bool:
    """Tell whether a string is an f-string: code within it is no plain value, and takes long to parse."""
    return any(
        match[1] in "fF" or (match[1] in "rR" and text[max(0, match.start() - 2)] in "fF")
        for match in _STRINGS.finditer(text)
    )


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with keyword arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("a ** argument")
        arguments[keyword.arg] = _value(keyword.value)
    name = ast.unparse(node.func)
    if not writable(name):
        raise ValueError("no name")
    return Call(name, dumps(arguments))


_NAMES: Final = {"true": True, "false": False, "null": None}


def _value(node: ast.expr) -> Any:
    """Read a literal that JSON has, too; `ValueError` for anything else."""
    match node:
        case ast.Constant(value=str() | int() | bool() | None):
            return node.value
        case ast.Constant(value=float(number)) if number - number == 0:  # neither inf nor nan
            return number
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if number - number == 0:
            return -number
    raise ValueError("no plain value")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError("a key that is no string")
