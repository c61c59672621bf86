"""`tool_choice`: who decides whether tools are called. Pure.

`auto` leaves it to the model and `none` forbids it; for `required`, or a named tool, the answer is constrained to a
schema, which the worker's engine has to be able to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import bad_request
from dynamo.frontend.openai.guided import FIELDS, check_constraint
from dynamo.llm.parsers.events import Parser
from dynamo.llm.parsers.factory import ParserFactory, call_id
from dynamo.llm.parsers.forced_calls import REQUIRED, ForcedParser, schema_for
from dynamo.llm.parsers.parser import FirstCalls
from dynamo.llm.processing.request_options import field

_FORM: Final = 'auto, none, required or {"type": "function", "function": {"name": "…"}}'


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
        raise bad_request(f"tool_choice: expected {_FORM}.", "tool_choice", "unsupported_value")
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
    return Parsing(make, reading.new_id, reading.shown(body))


def _forced(
    reading: ParserFactory | None, body: Mapping[str, Any], forced: Forced, prompt_ids: Sequence[int]
) -> Parsing:
    thoughts, shown = (None, {}) if reading is None else reading.without_tools(body, prompt_ids)
    made: Callable[[], Parser] = partial(ForcedParser, forced.name, thoughts)
    new_id = call_id if reading is None else reading.new_id
    if body.get("parallel_tool_calls") is False:
        return Parsing(lambda: FirstCalls(made()), new_id, shown, forced=True)
    return Parsing(made, new_id, shown, forced=True)
