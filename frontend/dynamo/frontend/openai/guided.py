"""What constrains an answer: `guided_*`, in `nvext` too, and `response_format`. Pure; `openai.py` checks with it.

Here is seen to it that a request says one thing and says it in form; whether an engine can
do it is the worker's to say, since only that knows its engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynamo.frontend.errors import ApiError, bad_request

FIELDS: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_FORMATS: Final = ("text", "json_object", "json_schema")


def check_guided(body: Mapping[str, Any]) -> None:
    """Raise where the body asks for two constraints at once, or for one that is none."""
    nvext = body.get("nvext")
    places = [body, nvext if isinstance(nvext, Mapping) else {}]
    asked = {name: value for name in FIELDS for place in places if (value := place.get(name)) is not None}
    if len(asked) > 1:
        raise bad_request(f"{', '.join(asked)}: only one of them can constrain an answer.", next(iter(asked)))
    for name, value in asked.items():
        if not _fits(name, value):
            raise bad_request(f"{name}: expected {_EXPECTED[name]}.", name, "invalid_type")
    _check_format(body.get("response_format"), asked)


_EXPECTED: Final = {
    "guided_json": "a JSON schema, as an object or a string",
    "guided_regex": "a regular expression",
    "guided_choice": "a list of at least one string",
    "guided_grammar": "a grammar, as a string",
}


def _fits(name: str, value: Any) -> bool:
    if name == "guided_choice":
        return isinstance(value, list) and bool(value) and all(isinstance(one, str) and one for one in value)
    return (isinstance(value, str) and bool(value)) or (name == "guided_json" and isinstance(value, Mapping))


def _check_format(shape: Any, asked: Mapping[str, Any]) -> None:
    if not isinstance(shape, Mapping):
        return
    form = shape.get("type", "text")
    if form not in _FORMATS:
        raise _format(f"type {form!r} is not supported; use {', '.join(_FORMATS)}", "unsupported_value")
    if form != "text" and asked:
        raise _format(f"it can't be combined with {next(iter(asked))}")
    schema = shape.get("json_schema")
    if form == "json_schema" and not (isinstance(schema, Mapping) and isinstance(schema.get("schema"), Mapping)):
        raise _format("type json_schema needs json_schema.schema, an object")


def _format(text: str, code: str = "invalid_value") -> ApiError:
    return bad_request(f"response_format: {text}.", "response_format", code)
