"""`tool_choice: required`, or a named tool: the engine keeps to a JSON schema, and its answer is the calls.

No format of the model's own is needed for it. `schema_for` makes the schema, `ForcedParser` reads what comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from dynamo.llm.parsers.call_streams import OBJECT, CallStream, ObjectScan, of_forced
from dynamo.llm.parsers.events import Call, CallStart, CallText, Content, Event, Parser, Thought
from dynamo.llm.parsers.json_calls import arguments_of, calls_of
from dynamo.runtime.errors import InvalidArgument

REQUIRED = "required"
_DEFINITIONS = ("$defs", "definitions")


def schema_for(tools: list[Any], name: str | None, most: int | None) -> dict[str, Any]:
    """Return the schema of an answer that calls the tool `name`; where that is None, at least one and at most `most`.

    Of one tool it is that of its arguments. Raises `InvalidArgument` where a tool can't be asked for.
    """
    functions = [_function(tool, index) for index, tool in enumerate(tools)]
    if not functions:
        raise InvalidArgument("tool_choice: there are no tools to choose from; give some in tools")
    if name is not None:
        chosen = [function for function in functions if function["name"] == name]
        if not chosen:
            raise InvalidArgument(f"tool_choice: {name!r} is none of the tools")
        return _parameters(chosen[0])
    shared: dict[str, dict[str, Any]] = {}
    variants = []
    for function in functions:
        parameters = _parameters(function)
        for place in _DEFINITIONS:
            _share(shared.setdefault(place, {}), parameters.pop(place, None))
        properties = {"name": {"type": "string", "enum": [function["name"]]}, "parameters": parameters}
        variants.append({"type": "object", "properties": properties, "required": ["name", "parameters"],
                         "additionalProperties": False})  # fmt: skip
    limit = {} if most is None else {"maxItems": most}
    items = variants[0] if len(variants) == 1 else {"type": "object", "anyOf": variants}
    named = {place: schemas for place, schemas in shared.items() if schemas}
    return {"type": "array", "minItems": 1, **limit, "items": items, **named}


def _function(tool: Any, index: int) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidArgument(f"tools[{index}] must be an object with function.name")
    return function


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters")
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(schema, Mapping):
        raise InvalidArgument(f"tools: the parameters of {function['name']!r} must be a JSON schema, an object")
    return dict(schema)


def _share(known: dict[str, Any], properties: Any) -> None:
    """Move definitions to the root, where references look for them."""
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        if known.setdefault(name, schema) != schema:
            raise InvalidArgument(
                f"tool_choice: two tools define {name!r} differently; give one of the definitions another name"
            )


class ForcedParser:
    """Says calls while they come: `name`'s arguments, or, where that is None, a list of calls.

    An answer that doesn't begin as one is held until it is whole. Where the engine lets a model think before it keeps
    to the schema, `thoughts` makes what tells the two apart.
    """

    def __init__(self, name: str | None, thoughts: Callable[[], Parser] | None = None) -> None:
        self._name, self._thoughts = name, thoughts
        self._parts: list[str] = []
        self._stream = CallStream(_REQUIRED, {}) if name is None else None
        self._scan: ObjectScan | None = None
        """Of the arguments of the named tool, once they have begun."""
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        self._parts.append(text)
        return self._feed_named(text) if self._stream is None else self._stream.feed(text)

    def _feed_named(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._scan is None:
            self._held = (self._held + text)[:_LONGEST_START]
            if OBJECT.match(self._held) is None:
                return events
            assert self._name is not None
            self._scan, self._held = ObjectScan(), "".join(self._parts).lstrip()
            events.append(CallStart(self._name))
        elif self._scan.over:
            return events
        else:
            self._held += text
        said, at = self._scan.take(self._held, 0)
        self._held = self._held[at:]
        return [*events, CallText(said)] if said else events

    def finish(self) -> list[Event]:
        if self._scan is not None:
            return []
        if self._stream is not None and self._stream.begun:
            return self._stream.finish()
        text, self._parts = "".join(self._parts), []
        thoughts: list[Event] = []
        calls = self._read(text)
        if calls is None and self._thoughts is not None:
            parser = self._thoughts()
            events = parser.feed(text) + parser.finish()
            thoughts += [event for event in events if isinstance(event, Thought)]
            text = "".join(event.text for event in events if isinstance(event, Content))
            calls = self._read(text)
        if calls is not None:
            return [*thoughts, *calls]
        return [*thoughts, Content(text)] if text else thoughts

    def _read(self, text: str) -> list[Call] | None:
        if self._name is None:
            return calls_of(text)
        arguments = arguments_of(text) if text.strip() else None
        return None if arguments is None else [Call(self._name, arguments)]


class InputParser:
    """Says one call whose only argument is the answer, which keeps to a grammar of its own."""

    def __init__(self, name: str) -> None:
        self._name, self._begun = name, False

    def feed(self, text: str) -> list[Event]:
        said = CallText(json.dumps(text, ensure_ascii=False)[1:-1])
        if self._begun:
            return [said]
        self._begun = True
        return [CallStart(self._name), CallText('{"input": "'), said]

    def finish(self) -> list[Event]:
        return [CallText('"}')] if self._begun else []


_REQUIRED: Final = of_forced()
_LONGEST_START: Final = 1024
"""Characters in which the arguments of a named tool begin; else they are read whole."""
