"""What a parser says of an answer, piece by piece, and what it knows of the request's tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec


class Content(msgspec.Struct, frozen=True):
    """Text for the reader."""

    text: str


class Thought(msgspec.Struct, frozen=True):
    """Text that the model wrote to itself."""

    text: str


class Call(msgspec.Struct, frozen=True):
    """One whole call of a tool."""

    name: str
    arguments: str
    """A JSON object, as text that has a UTF-8 form."""
    id: str | None = None
    """The model's own, where its format has one."""


class CallStart(msgspec.Struct, frozen=True):
    """A call whose arguments follow, as they are written."""

    name: str
    id: str | None = None


class CallText(msgspec.Struct, frozen=True):
    """So much more of the arguments of the call that began last."""

    text: str


Event: TypeAlias = Content | Thought | Call | CallStart | CallText
Tools: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The request's tools: name to the JSON schemas of the arguments, by their names."""


class Parser(Protocol):
    """Reads one answer. What it says doesn't depend on where the text was cut, only when it says it does."""

    def feed(self, text: str) -> list[Event]:
        """Return what is certain now."""

    def finish(self) -> list[Event]:
        """Return the rest: the text has ended."""


def tools_of(tools: Any) -> dict[str, Mapping[str, Any]]:
    """Read a request's `tools`; what has another shape is left out."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools if isinstance(tools, Iterable) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            schemas[name] = properties if isinstance(properties, Mapping) else {}
    return schemas
