"""pydantic's validation errors in our own sentences: the field's path, what is allowed, what was meant.

Called by `load.py`. pydantic reports a failing union once per member and a failing list
both at the item and at the list; a reader wants one line per field.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dynamo.operator.api.rules import Problem
from dynamo.operator.api.shown import VALUE_CHARACTERS, shown

_Location = tuple[int | str, ...]
_MOST_PLACES: Final = 2
_MOST_DEPTH: Final = 5


def explain(error: ValidationError, data: Any, model: type[BaseModel]) -> list[Problem]:
    """Return a problem for each wrong field, in the order of the file's fields."""
    by_place: dict[_Location, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        place = _real(detail["loc"], data, missing=detail["type"] == "missing")
        by_place.setdefault(place, []).append(detail)
    places = [p for p in by_place if not any(other != p and other[: len(p)] == p for other in by_place)]
    return [Problem(path_text(p), _sentence(by_place[p], p, data, model)) for p in places]


def path_text(location: _Location) -> str:
    """Return `('spec', 'components', 1, 'engine')` as `spec.components[1].engine`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def kind_of(value: Any) -> str:
    """Return what a YAML reader calls a value."""
    names: Mapping[type, str] = {dict: "a mapping", list: "a list", bool: "a boolean", str: "a string", int: "a number"}
    return names.get(type(value), "nothing" if value is None else "a number")


def _real(location: _Location, data: Any, *, missing: bool) -> _Location:
    """Return `location` without what isn't in the data: pydantic names union members and keys, too.

    The last part of a location of something that is missing is never in the data, and stays.
    """
    real: list[int | str] = []
    for depth, part in enumerate(location):
        if missing and depth == len(location) - 1:
            real.append(part)
        elif _holds(data, part):
            data = data[part]
            real.append(part)
    return tuple(real)


def _holds(data: Any, part: int | str) -> bool:
    """Return whether `part` is a key of a mapping, or an index of a list."""
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data)


def _value(location: _Location, data: Any) -> Any:
    """Return what is at `location`, None where there is nothing."""
    for part in location:
        if not _holds(data, part):
            return None
        data = data[part]
    return data


def _sentence(details: list[ErrorDetails], location: _Location, data: Any, model: type[BaseModel]) -> str:
    kinds = {d["type"]: d for d in details}
    if "missing" in kinds:
        return _missing(location)
    if "extra_forbidden" in kinds:
        return _unknown(location, model)
    value = _value(location, data)
    if "enum" in kinds or "literal_error" in kinds:
        detail = kinds.get("enum") or kinds["literal_error"]
        return _not_one_of(
            value, [part.strip("' ") for part in detail["ctx"]["expected"].replace(" or ", ", ").split(",")]
        )
    for kind, say in _SENTENCES.items():
        if kind in kinds:
            return say(value, kinds[kind].get("ctx", {}))
    return f"{details[0]['msg']}, not {shown(value)}"


def _missing(location: _Location) -> str:
    hints = {"engine": ": for example `engine: mocker`", "components": ": list at least one, with its engine"}
    return f"is required{hints.get(str(location[-1]), '') if location else ''}"


def _unknown(location: _Location, model: type[BaseModel]) -> str:
    known = _fields_at(location[:-1], model)
    name = str(location[-1])[:VALUE_CHARACTERS] if location else ""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    lower = {k.lower(): k for k in known}
    plain = name.replace("_", "").replace("-", "").lower()
    places = [] if plain in lower else _places(plain, model)
    if 0 < len(places) <= _MOST_PLACES:
        return f"is not a field here: it is {' or '.join(places)}"
    meant = lower.get(plain) or (close[0] if close else None)
    return "is not a field here: " + (f"did you mean {meant}?" if meant else f"the fields are {', '.join(known)}")


def _fields_at(location: _Location, model: type[BaseModel]) -> list[str]:
    """Return the names (as in YAML) of the fields of the object at `location`."""
    for part in location:
        fields = model.model_fields.values()
        # No field: an index of a list, or somebody's key of a mapping.
        if field := next((f for f in fields if part in (f.alias, f.serialization_alias)), None):
            model = _model_in(field.annotation) or model
    return [f.alias or name for name, f in model.model_fields.items()]


def _places(plain: str, model: type[BaseModel], path: str = "", depth: int = _MOST_DEPTH) -> list[str]:
    """Return the fields of a pipeline, anywhere in it, whose name is this one but for its case and dashes."""
    places = []
    for name, field in model.model_fields.items():
        key = f"{path}.{field.alias or name}".removeprefix(".")
        if not key.startswith("spec"):
            continue
        if key.rpartition(".")[2].lower() == plain:
            places.append(key)
        if depth and (inner := _model_in(field.annotation)):
            is_list = "list[" in str(field.annotation) or "tuple[" in str(field.annotation)
            places += _places(plain, inner, key + "[]" * is_list, depth - 1)
    return places


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for m in map(_model_in, get_args(annotation)) if m), None)


def _not_one_of(value: Any, allowed: list[str]) -> str:
    text = value[:VALUE_CHARACTERS] if isinstance(value, str) else shown(value)
    close = difflib.get_close_matches(text, allowed, n=1, cutoff=0.5)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"{shown(value)} is not one of {', '.join(allowed)}{meant}"


def _wrong_type(wanted: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def say(value: Any, _: Mapping[str, Any]) -> str:
        if wanted == "a string" and isinstance(value, bool | int | float):
            return f"must be a string, not {kind_of(value)}: quote it"
        if wanted != "a string" and isinstance(value, str) and value:
            return f"must be {wanted}, not the string {shown(value)}" + (
                ": remove the quotes" if value.isdecimal() else ""
            )
        return f"must be {wanted}, not {value if isinstance(value, float) else kind_of(value)}"

    return say


def _bad_form(value: Any, context: Mapping[str, Any]) -> str:
    forms = {
        "h|m|s|ms": "a duration like 30s, 10m or 1h30m",
        r"(\*\.)?": "a host name like llama.example.org or *.example.org",
        "%$": "a number or a percentage like 25%",
        "KMGTPE": "a quantity like 500m, 4 or 40Gi",
        "[-a-z0-9]": "lower-case letters, digits and '-', beginning with a letter and not ending with '-'",
        "[-_a-z0-9]": "lower-case letters, digits, '-' and '_', beginning and ending with a letter or digit",
    }
    form = next((text for mark, text in forms.items() if mark in context["pattern"]), f"like {context['pattern']}")
    return f"{shown(value)} must be {form}"


_SENTENCES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "string_pattern_mismatch": _bad_form,
    "greater_than_equal": lambda value, c: f"must be {c['ge']:g} or more, not {shown(value)}",
    "less_than_equal": lambda value, c: f"must be {c['le']:g} or less, not {shown(value)}",
    "string_too_short": lambda _v, c: f"must have at least {c['min_length']} characters",
    "string_too_long": lambda value, c: f"must have {c['max_length']} characters at most, not {len(str(value))}",
    "too_short": lambda _v, c: f"must have at least {c['min_length']} entries",
    "too_long": lambda _v, c: f"must have {c['max_length']} entries at most, not {c['actual_length']}",
    "finite_number": lambda value, _c: f"must be a finite number, not {shown(value)}",
    "int_type": _wrong_type("a whole number"),
    "int_from_float": lambda value, _c: f"must be a whole number, not {shown(value)}",
    "float_type": _wrong_type("a number"),
    "bool_type": _wrong_type("true or false"),
    "string_type": _wrong_type("a string"),
    "dict_type": _wrong_type("a mapping"),
    "tuple_type": _wrong_type("a list"),
    "list_type": _wrong_type("a list"),
    "model_type": _wrong_type("a mapping"),
    "model_attributes_type": _wrong_type("a mapping"),
}
