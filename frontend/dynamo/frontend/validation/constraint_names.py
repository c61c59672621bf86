"""Constraints of answers in other servers' words: read where one of ours says the same, refused where none does. Pure.

vLLM says `structured_outputs`, SGLang `regex`, `ebnf` and `json_schema`, llama.cpp `grammar`, ollama `format`. Whoever
sends one counts on it: a constraint that is ignored looks like an answer that keeps to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from dynamo.frontend.errors import UNKNOWN_PARAMETER, ApiError, bad_request, shown

STRUCTURED: Final = "structured_outputs"
_JSON: Final = "guided_json"
_IN_STRUCTURED: Final = {
    "json": _JSON, "regex": "guided_regex", "choice": "guided_choice", "grammar": "guided_grammar",
    "structural_tag": "guided_structural_tag", "whitespace_pattern": "guided_whitespace_pattern",
}  # fmt: skip
_NEEDLESS: Final = ("disable_fallback", "disable_additional_properties", "disable_any_whitespace", "backend")
"""Members of vLLM's object that say how an engine compiles; only what they leave out changes nothing."""
_ALONE: Final = {
    "regex": "guided_regex", "ebnf": "guided_grammar", "grammar": "guided_grammar", "json_schema": _JSON,
    "structural_tag": "guided_structural_tag",
}  # fmt: skip
_FORMAT: Final = "format"
_SPELLINGS: Final = frozenset((STRUCTURED, _FORMAT, *_ALONE))
_UNSERVED: Final = {
    "logits_processors": "use logit_bias, or a constraint",
    "logits_processor": "use logit_bias, or a constraint",
    "custom_logit_processor": "use logit_bias, or a constraint",
    "use_beam_search": "use n with a temperature",
    "length_penalty": "it is one of beam searches, which no engine here does",
    "thinking_token_budget": "use max_tokens",
}
"""What changes an answer, and no engine here is told; and what does something like it."""
_CONSTRAINTS: Final = (
    "response_format", STRUCTURED, "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guided_structural_tag", "guided_whitespace_pattern", "tool_choice", "tools", "json_schema", "ebnf", "logit_bias",
    *_UNSERVED,
)  # fmt: skip
_NOTHING: Final[tuple[Any, ...]] = (None, False, "", [], {})
"""Values that ask for nothing."""
_BEGINNINGS: Final = ("guided", "structured", "constrain")
_WITHIN: Final = ("grammar", "regex", "schema", "format")


def translate(body: dict[str, Any]) -> dict[str, str]:
    """Say the body's constraints in our words; return for each of those how the client spelled it."""
    if _SPELLINGS.isdisjoint(body):
        return {}
    spelled: dict[str, str] = {}
    if isinstance(given := body.get(STRUCTURED), Mapping):
        del body[STRUCTURED]
        for ours, name, value in _structured(given):
            _put(body, spelled, ours, f"{STRUCTURED}.{name}", value)
    for name in _ALONE.keys() & body.keys():
        if (value := body.pop(name)) is not None:
            _put(body, spelled, _ALONE[name], name, value)
    if (shape := body.pop(_FORMAT, None)) not in (None, ""):
        if shape != "json" and not isinstance(shape, Mapping):
            text = f'{_FORMAT}: expected "json" or a JSON schema, got {shown(shape)}; or use response_format.'
            raise bad_request(text, _FORMAT, "unsupported_value")
        _put(body, spelled, _JSON, _FORMAT, {"type": "object"} if shape == "json" else shape)
    return spelled


def _structured(given: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Read vLLM's object: our name, its name and the value of each member that says something."""
    read = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        if name == "json_object":
            read.append((_JSON, name, {"type": "object"}))
        elif name in _IN_STRUCTURED:
            read.append((_IN_STRUCTURED[name], name, value))
        elif name not in _NEEDLESS:
            raise refused(f"{STRUCTURED}.{name}", tuple(_IN_STRUCTURED), name)
        elif name != "backend" and name != "disable_fallback":
            text = f"{STRUCTURED}.{name[:60]}: not supported; say it in the schema."
            raise bad_request(text, f"{STRUCTURED}.{name}", "unsupported_parameter")
    return read


def _put(body: dict[str, Any], spelled: dict[str, str], ours: str, theirs: str, value: Any) -> None:
    if body.get(ours) is not None:
        other = spelled.get(ours, ours)
        raise bad_request(f"{other}, {theirs}: only one of them can constrain an answer.", theirs)
    body[ours], spelled[ours] = value, theirs


def unserved(name: str, value: Any = True, instead: str = "") -> ApiError | None:
    """Return the 400 of an unknown field that would have changed the answer; None where it may be ignored.

    `instead`: the field of an API that has one only for the form of its answers.
    """
    if value in _NOTHING or (name == "length_penalty" and value == 1):
        return None
    if (hint := _UNSERVED.get(name)) is not None:
        return bad_request(f"{name}: not supported; {hint}.", name, "unsupported_parameter")
    known = (instead,) if instead else (*_CONSTRAINTS, _FORMAT)
    return refused(name, known, name.lower()) if looks_alike(name.lower()) else None


@lru_cache(1024)
def looks_alike(low: str) -> bool:
    """Tell whether a name, in small letters, may be a misspelt constraint."""
    alike = low.startswith(_BEGINNINGS) or any(word in low for word in _WITHIN)
    return alike or bool(get_close_matches(low, (*_CONSTRAINTS, *_ALONE, _FORMAT), n=1, cutoff=0.8))


def refused(param: str, known: tuple[str, ...], name: str) -> ApiError:
    """Return the 400 of a constraint that nobody here knows, with the name that it may mean."""
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]}?" if near else f" Known are {', '.join(known[:8])}."
    shown_name = param[:100]
    text = f"{shown_name}: unknown, and it looks like a constraint of the answer, which is never ignored.{hint}"
    return bad_request(text, shown_name, UNKNOWN_PARAMETER)


def as_spelled(error: ApiError, spelled: Mapping[str, str]) -> ApiError:
    """Return an error about one of our names as one about the client's."""
    ours = error.param or error.message.partition(":")[0]
    if (theirs := spelled.get(ours)) is not None:
        error.param, error.message = theirs, error.message.replace(ours, theirs, 1)
    return error
