"""Calls whose arguments are texts between tags: qwen3_coder, minimax_m2, glm45, DeepSeek's DSML.

A text says nothing of its type, so the tool's JSON schema does: a string stays as it stands, anything else is read as
JSON, and is a string where it is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dynamo.llm.parsers.events import Call, Tools
from dynamo.llm.parsers.json_calls import Read, dumps, in_turn, loads, writable

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
"""What templates print for Python's values, and models after them."""
_MOST_VARIANTS: Final = 64
"""Parts of a schema that are looked at for each argument of a call."""


def typed(text: str, schema: Any) -> Any:
    """Return the value that `text` stands for in an argument of this JSON schema."""
    kinds = set(_kinds(schema))
    if kinds and kinds <= {"string"}:
        return text
    plain = text.strip()
    if "string" in kinds:
        return None if kinds == {"string", "null"} and plain == "null" else text
    word = plain.lower()
    if word in _WORDS and (not kinds or kinds & {"boolean", "null"}):
        return _WORDS[word]
    try:
        return loads(plain)
    except ValueError:
        return text


def _kinds(schema: Any) -> Iterator[str]:
    """Yield the types that a schema allows; none where it doesn't say. Of a huge one, by what is looked at first."""
    left = [schema]
    for _ in range(_MOST_VARIANTS):
        if not left:
            return
        if not isinstance(schema := left.pop(), Mapping):
            continue
        kind = schema.get("type")
        if isinstance(kind, str):
            yield kind
        elif isinstance(kind, list):
            yield from (name for name in kind[:_MOST_VARIANTS] if isinstance(name, str))
        elif isinstance(values := schema.get("enum"), list):
            yield "string" if all(isinstance(value, str) for value in values[:_MOST_VARIANTS]) else "mixed"
        for name in ("anyOf", "oneOf"):
            variants = schema.get(name)
            left += variants[:_MOST_VARIANTS] if isinstance(variants, list) else ()


class Tags:
    """One family's tags, as regular expressions with the groups `name` and `body`, or `key` and `value`.

    A value ends with the first tag that ends it where another one, or nothing, follows: it may hold tags of its own.
    """

    def __init__(self, opener: str, closer: str, call: str, argument: str, *, value_gap: str = "") -> None:
        self._opener, self._closer, self._gap = opener, closer, value_gap
        self._call, self._argument = (re.compile(pattern, re.DOTALL) for pattern in (call, argument))

    def read(self, text: str, tools: Tools) -> list[Call] | None:
        """Read a whole block; None where something in it is no call."""
        matches = in_turn(self._call, text.removeprefix(self._opener).removesuffix(self._closer))
        calls = [self._one(match, tools) for match in matches or ()]
        readable = [call for call in calls if call is not None]
        return readable if readable and len(readable) == len(calls) else None

    def _one(self, match: re.Match[str], tools: Tools) -> Call | None:
        name, body = match["name"].strip(), match["body"]
        matches = in_turn(self._argument, body)
        if matches is None or not writable(name):
            return None
        schemas = tools.get(name, {})
        return Call(name, dumps({match["key"].strip(): self._value(match, schemas) for match in matches}))

    def _value(self, match: re.Match[str], schemas: Mapping[str, Any]) -> Any:
        value = match["value"]
        if self._gap:
            value = value.removeprefix(self._gap).removesuffix(self._gap)
        if (quoted := match.groupdict().get("string")) is not None:
            return typed(value, {"type": "string" if quoted == "true" else "other"})
        return typed(value, schemas.get(match["key"].strip()))


_FUNCTION: Final = r"<function=(?P<name>[^>\n]+)>(?P<body>.*?)(?:</function>|$)"
_PARAMETER: Final = r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>\s*(?=<parameter=|$)"
_CODER: Final = Tags("<tool_call>", "</tool_call>", _FUNCTION, _PARAMETER, value_gap="\n")
_SEED: Final = Tags("<seed:tool_call>", "</seed:tool_call>", _FUNCTION, _PARAMETER, value_gap="\n")
_MINIMAX: Final = Tags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    r"<invoke name=[\"']?(?P<name>[^>\"'\n]+)[\"']?>(?P<body>.*?)</invoke>",
    r"<parameter name=[\"']?(?P<key>[^>\"'\n]+)[\"']?>(?P<value>.*?)</parameter>\s*(?=<parameter name=|$)",
    value_gap="\n",
)
_GLM: Final = Tags(
    "<tool_call>",
    "</tool_call>",
    r"(?P<name>[\w.\-/]+)\s*(?P<body>(?:<arg_key>.*)?)\Z",
    r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*(?=<arg_key>|$)",
)

read_coder: Final[Read] = _CODER.read
read_seed: Final[Read] = _SEED.read
read_minimax: Final[Read] = _MINIMAX.read
read_glm: Final[Read] = _GLM.read


def dsml(opener: str, closer: str) -> Read:
    """Read DeepSeek's markup, in which each argument says whether it is a string."""
    return Tags(
        opener,
        closer,
        r"<｜DSML｜invoke name=\"(?P<name>[^\"\n]+)\"\s*>(?P<body>.*?)</｜DSML｜invoke>",
        r"<｜DSML｜parameter name=\"(?P<key>[^\"\n]+)\"\s+string=\"(?P<string>true|false)\"\s*>"
        r"(?P<value>.*?)</｜DSML｜parameter>\s*(?=<｜DSML｜parameter|$)",
    ).read
