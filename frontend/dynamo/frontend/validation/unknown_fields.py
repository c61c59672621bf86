"""Fields that nothing here knows: named to the client in a header, and to whoever runs this once each, in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from dynamo.frontend.anthropic.request_structs import MessagesRequest
from dynamo.frontend.errors import ApiError
from dynamo.frontend.openai.request_structs import DetokenizeRequest, EmbeddingsRequest, TokenizeRequest
from dynamo.frontend.openai.requests import members_of, nearest, refuse_unknown, unknown_fields
from dynamo.frontend.openai.responses_structs import ResponsesRequest
from dynamo.frontend.validation.constraint_names import looks_alike, refused, unserved

log = logging.getLogger(__name__)
IGNORED: Final = b"x-dynamo-ignored-fields"
MOST_NAMES: Final = 256
"""Names that get a line each: a client that makes them up fills no log."""
_UNPRINTABLE: Final = re.compile(r"[^!-+\--~]")
_FREE: Final = (EmbeddingsRequest, TokenizeRequest, DetokenizeRequest)
"""Requests without an answer that could be constrained."""
_FORMATS: Final[dict[type[Struct], str]] = {ResponsesRequest: "text.format", MessagesRequest: "output_config.format"}
"""Where APIs with another word for it have an answer's form."""


class IgnoredFields:
    """Names that were ignored in this process."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, body: dict[str, Any], kind: type[Struct], *, strict: bool) -> Sequence[str]:
        """Return the names that are ignored; raises where one of them changes answers, or, where `strict`, for any."""
        if not (unknown := unknown_fields(body, kind)):
            return ()
        if kind not in _FREE:
            for name in unknown:
                if (refusal := _refusal(name, body, kind)) is not None:
                    raise refusal
        if strict:
            raise refuse_unknown(unknown, kind)
        for name in unknown:
            self._tell(name, kind)
        return unknown

    def _tell(self, name: str, kind: type[Struct]) -> None:
        if name in self._told or len(self._told) >= MOST_NAMES:
            return
        self._told.add(name)
        near = nearest(name, kind)
        hint = f"; did the client mean {near}?" if near else ""
        log.warning("requests have a field that is unknown and ignored: %s%s", printable(name), hint)


def _refusal(name: str, body: dict[str, Any], kind: type[Struct]) -> ApiError | None:
    """Return the 400 of a field that would have changed the answer, had it been known."""
    field, _, member = name.partition(".")
    members, given = members_of(kind).get(field), body.get(field)
    if name in body or members is None or not isinstance(given, dict):  # a client's names may have dots
        return unserved(name, body.get(name, True), _FORMATS.get(kind, ""))
    value = given.get(member, True)
    if field != "nvext" and value is not None and looks_alike(member.lower()):
        return refused(name, tuple(f"{field}.{known}" for known in members), name)
    if (refusal := unserved(member, value)) is not None:
        refusal.param = name
    return refusal


def printable(name: str) -> str:
    """Return a client's name as a header and a line of a log may have it."""
    return _UNPRINTABLE.sub("?", name)


def header(names: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the header that names them."""
    return IGNORED, ", ".join(map(printable, names)).encode("ascii")
