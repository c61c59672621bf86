"""What a user's `generate` is given: plain dicts with the original's names, every one of them present. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from dynamo.llm.protocols import PreprocessedRequest, TextRequest


def tokens_request(request: PreprocessedRequest) -> dict[str, Any]:
    """A request as a tokens engine in Python gets it.

    Beside our own names those of the original that are made from them: `stop_token_ids_hidden` holds every id that
    ends the answer, the model's own unless they are ignored.
    """
    found = _plain(request)
    stops: dict[str, Any] = found["stop_conditions"]
    own = () if request.stop_conditions.ignore_eos else request.eos_token_ids
    stops["stop_token_ids_hidden"] = list(dict.fromkeys([*stops["stop_token_ids"], *own]))
    found["sampling_options"] |= {"use_beam_search": None, "length_penalty": None}
    return found


def text_request(request: TextRequest) -> dict[str, Any]:
    """A request as a text engine in Python gets it: the client's body, with a copy's freedom to change it."""
    return dict(request.body)


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """With the fields that are at their defaults, which `to_builtins` leaves out."""
    return {name: _deep(getattr(value, name)) for name in value.__struct_fields__}


def _deep(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _plain(value)
    return msgspec.to_builtins(value)
