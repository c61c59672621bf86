"""What requests that leave it out get instead: `dynamo-run --request-template`. Pure.

The routes of chat and completions fill a request's body in before it is read; what a request says wins.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamo.frontend.openai.nvext import MAX_NAME
from dynamo.runtime.errors import InvalidArgument


class RequestDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults of requests; None: as the route does without. `null` in a request is left out, too."""

    model: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """For /v1/completions its `max_tokens`."""

    def fill(self, body: dict[str, Any], *, chat: bool) -> None:
        """Put into a request's body what it lacks."""
        if self.model is not None and body.get("model") in (None, ""):
            body["model"] = self.model
        if self.temperature is not None and body.get("temperature") is None:
            body["temperature"] = self.temperature
        limits = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
        if self.max_completion_tokens is not None and all(body.get(name) is None for name in limits):
            body[limits[0]] = self.max_completion_tokens


def read_defaults(text: str) -> RequestDefaults:
    """Return what a template of requests says, JSON; `InvalidArgument` where it can't be used."""
    try:
        return msgspec.json.decode(text, type=RequestDefaults)
    except (msgspec.DecodeError, UnicodeError) as error:
        known = ", ".join(RequestDefaults.__struct_fields__)
        raise InvalidArgument(f"{error}; known are {known}") from error
