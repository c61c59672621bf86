"""What constrains an answer: `guided_*`, in `nvext` too, `response_format` and `tool_choice`. Pure.

Here is seen to it that a request says one thing and says it in form (`requests.py` checks with it); whether an engine
can do it is the worker's to say, since only that knows its engine. `tool_choice` says who decides whether tools are
called: `auto` leaves it to the model and `none` forbids it; for `required`, or a named tool, the answer is constrained
to a schema, which the worker's engine has to be able to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.openai.custom_tools import customs
from dynamo.frontend.openai.request_structs import MAX_GRAMMAR, MAX_GUIDED_CHOICES
from dynamo.frontend.openai.tools import is_legacy
from dynamo.llm.parsers.events import Parser
from dynamo.llm.parsers.factory import ParserFactory, call_id
from dynamo.llm.parsers.forced_calls import REQUIRED, ForcedParser, InputParser, schema_for
from dynamo.llm.parsers.parser import FirstCalls
from dynamo.llm.processing.request_options import field

FIELDS: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
MAX_SCHEMA: Final = 256 << 10
"""Bytes of a JSON schema, or of all choices."""
_TAG: Final = "guided_structural_tag"
_FORMAT: Final = "response_format"
_CHOICES: Final = 'auto, none, required or {"type": "function", "function": {"name": "…"}}'
_CONSTRAINING: Final = frozenset((*FIELDS, _TAG, _FORMAT, "nvext"))
"""Fields that may constrain an answer; few bodies have one."""
_FORMATS: Final = ("text", "json_object", "json_schema")
NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
"""Of a function or a schema: OpenAI's, but as long as Anthropic's may be."""
NAME_FORM: Final = "1 to 128 letters, digits, _ and -"


def check_guided(body: Mapping[str, Any]) -> None:
    """Raise where the body asks for two constraints at once, or for one that is none."""
    if _CONSTRAINING.isdisjoint(body):
        return
    nvext = body.get("nvext")
    places = [body, nvext if isinstance(nvext, Mapping) else {}]
    asked = {name: value for name in FIELDS for place in places if (value := place.get(name)) is not None}
    if len(asked) > 1:
        raise bad_request(f"{', '.join(asked)}: only one of them can constrain an answer.", next(iter(asked)))
    for name, value in asked.items():
        if not _fits(name, value):
            raise bad_request(f"{name}: expected {_EXPECTED[name]}.", name, "invalid_type")
        check_constraint(name, value, _LONGEST[name])
    if (tag := body.get(_TAG)) is not None:
        if not isinstance(tag, str | Mapping):
            raise bad_request(f"{_TAG}: expected an object, or a string of one.", _TAG, "invalid_type")
        check_constraint(_TAG, tag, MAX_GRAMMAR)
    _check_format(body.get("response_format"), asked)


def constraint_of(body: Mapping[str, Any]) -> str:
    """Return the field that constrains the answer; empty where none does."""
    if _CONSTRAINING.isdisjoint(body):
        return ""
    return next((name for name in (*FIELDS, _TAG) if field(body, name) is not None), _FORMAT)


def check_constraint(name: str, value: Any, most: int = MAX_SCHEMA) -> None:
    """Raise where it is more than an engine is asked to compile; whole numbers of more than 64 bits become floats."""
    if isinstance(value, list) and len(value) > MAX_GUIDED_CHOICES:
        raise bad_request(f"{name}: at most {MAX_GUIDED_CHOICES} choices, got {len(value)}.", name)
    size = len(packed(name, value))
    if size > most:
        raise bad_request(f"{name}: {size} bytes, but at most {most} are taken.", name)


def packed(name: str, value: Any) -> bytes:
    """Return a JSON value as MessagePack, which has no whole numbers of more than 64 bits: they become floats in place.

    RFC 8259, section 6, promises nobody more than a float's precision. Raises where even a float can't hold it.
    """
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        pass
    try:
        _narrow_numbers(value)
    except OverflowError:
        raise bad_request(f"{name}: a number in it is too large.", name) from None
    return msgspec.msgpack.encode(value)


def _narrow_numbers(value: Any) -> None:
    rest = [value]
    while rest:
        container = rest.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        wide = [(key, item) for key, item in items if isinstance(item, int) and not -(2**63) <= item < 2**64]
        for key, item in wide:
            container[key] = float(item)
        rest += [item for item in (container.values() if isinstance(container, dict) else container)
                 if isinstance(item, dict | list)]  # fmt: skip


_LONGEST: Final = {
    "guided_json": MAX_SCHEMA, "guided_regex": MAX_GRAMMAR, "guided_choice": MAX_SCHEMA, "guided_grammar": MAX_GRAMMAR,
}  # fmt: skip
_EXPECTED: Final = {
    "guided_json": "a JSON schema, as an object or a string",
    "guided_regex": "a regular expression",
    "guided_choice": "a list of at least one string",
    "guided_grammar": "a grammar, as a string",
}


def _fits(name: str, value: Any) -> bool:
    if name == "guided_choice":
        return isinstance(value, list) and bool(value) and all(isinstance(choice, str) and choice for choice in value)
    return (isinstance(value, str) and bool(value)) or (name == "guided_json" and isinstance(value, Mapping))


def _check_format(shape: Any, asked: Mapping[str, Any]) -> None:
    if not isinstance(shape, Mapping):
        return
    if (form := shape.get("type")) is None:
        where = f"{_FORMAT}.type"
        raise bad_request(f"{where}: this field is required.", where, "missing_required_parameter")
    if form not in _FORMATS:
        raise _format(f"type {shown(form)} is not supported; use {', '.join(_FORMATS)}", "unsupported_value")
    if form != "text" and asked:
        raise _format(f"it can't be combined with {next(iter(asked))}")
    if form == "json_schema":
        _check_schema(shape.get("json_schema"), f"{_FORMAT}.json_schema")


def _check_schema(given: Any, where: str) -> None:
    if not isinstance(given, Mapping) or not isinstance(given.get("schema"), Mapping):
        raise _format("type json_schema needs json_schema.schema, an object")
    if not isinstance(strict := given.get("strict"), bool | None):
        raise bad_request(f"{where}.strict: expected bool, got {shown(strict)}.", f"{where}.strict", "invalid_type")
    if (name := given.get("name")) is None:
        raise bad_request(f"{where}.name: this field is required.", f"{where}.name", "missing_required_parameter")
    if not isinstance(name, str):
        raise bad_request(f"{where}.name: expected str, got {shown(name)}.", f"{where}.name", "invalid_type")
    if not NAME.fullmatch(name):
        raise bad_request(f"{where}.name: expected {NAME_FORM}, got {shown(name)}.", f"{where}.name")
    check_constraint("response_format", given)


def _format(text: str, code: str = "invalid_value") -> ApiError:
    return bad_request(f"response_format: {text}.", "response_format", code)


class Forced(msgspec.Struct, frozen=True):
    """Tools must be called: this one, or any."""

    name: str | None = None


class Parsing(msgspec.Struct, frozen=True):
    """Parsing of the answers to one request."""

    make: Callable[[], Parser]
    """For each choice anew."""
    new_id: Callable[[], str]
    shown: Mapping[int, str] = {}
    """Special tokens that the text must show."""
    forced: bool = False
    legacy: bool = False
    """Calls are told as `function_call`."""
    customs: Collection[str] = ()
    """Tools whose calls are told as those of custom ones."""
    thinks: bool = False
    """Thoughts are told apart while they come, so that their tokens can be counted; a forced answer's are held."""


def check_tool_choice(choice: Any) -> None:
    """Raise where it is none of the forms."""
    if choice is not None and choice not in ("auto", "none"):
        forced_by(choice)


def forced_by(choice: Any) -> Forced | None:
    """Return what a request's `tool_choice` forces; None where the model, or nobody, decides."""
    if choice is None or choice in ("auto", "none"):
        return None
    if choice == REQUIRED:
        return Forced()
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise bad_request(f"tool_choice: expected {_CHOICES}.", "tool_choice", "unsupported_value")
    return Forced(name)


def constrained(body: Mapping[str, Any], forced: Forced) -> dict[str, Any]:
    """Return the body with the schema that an answer which calls tools keeps to; raises where there can't be one."""
    shape = body.get("response_format")
    others = [name for name in FIELDS if field(body, name) is not None]
    if isinstance(shape, Mapping) and shape.get("type", "text") != "text":
        others.append("response_format")
    if others:
        text = f"tool_choice: it can't be combined with {others[0]}, since both constrain the answer; use auto."
        raise bad_request(text, "tool_choice")
    if grammar := customs(body).get(forced.name or ""):
        return {**body, "guided_grammar": grammar}
    most = 1 if body.get("parallel_tool_calls") is False else None
    schema = schema_for(body.get("tools") or [], forced.name, most)
    check_constraint("tools", schema)
    return {**body, "guided_json": schema}


def parsing_of(
    reading: ParserFactory | None, body: Mapping[str, Any], forced: Forced | None, prompt_ids: Sequence[int] = ()
) -> Parsing | None:
    """Return how to parse the answers; None where they come as the model writes them."""
    if forced is not None:
        return _forced(reading, body, forced, prompt_ids)
    if reading is None or (make := reading.parsers(body, prompt_ids)) is None:
        return None
    return Parsing(
        make, reading.new_id, reading.shown(body), legacy=is_legacy(body), customs=customs(body),
        thinks=reading.thinks,
    )  # fmt: skip


def _forced(
    reading: ParserFactory | None, body: Mapping[str, Any], forced: Forced, prompt_ids: Sequence[int]
) -> Parsing:
    thoughts, shown = (None, {}) if reading is None else reading.without_tools(body, prompt_ids)
    made: Callable[[], Parser] = partial(ForcedParser, forced.name, thoughts)
    tools = customs(body)
    if forced.name is not None and tools.get(forced.name):
        made = partial(InputParser, forced.name)
    new_id = call_id if reading is None else reading.new_id
    if body.get("parallel_tool_calls") is False:
        return Parsing(lambda: FirstCalls(made()), new_id, shown, forced=True, legacy=is_legacy(body), customs=tools)
    return Parsing(made, new_id, shown, forced=True, customs=tools)
