"""Errors of the frontend as gRPC has them: one table from HTTP's statuses to gRPC's codes. Pure.

Codes are spelled, not imported: what reads requests can be loaded without gRPC.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError
from dynamo.frontend.metrics import OVERLOAD

_CODES: Final = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED",
    413: "RESOURCE_EXHAUSTED", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 501: "UNIMPLEMENTED",
    503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


class Refusal(Exception):  # noqa: N818 - it is an answer
    """A request's answer is an error."""

    def __init__(self, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.headers = code, message, headers


class Slow(Refusal):
    """The client doesn't read. Made anew each time: an exception that stays keeps the frames that it passed."""

    def __init__(self) -> None:
        super().__init__("ABORTED", "the answer was not read in time")


def code_of(status: int, reason: str | None = None) -> str:
    """Return the gRPC code of an HTTP status.

    `reason` is the error's own code, which tells too much work from no worker.
    """
    if status == 503 and reason in OVERLOAD:
        return "RESOURCE_EXHAUSTED"
    return _CODES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")


def refusal(error: ApiError) -> Refusal:
    """Return an error that was found here."""
    return Refusal(code_of(error.status, error.code), error.message, tuple(error.headers))


def refusal_of(status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Refusal:
    """Return an error that the HTTP application answered with."""
    error: Any
    try:
        error = msgspec.json.decode(body)["error"]
        return Refusal(code_of(status, error.get("code")), str(error["message"]), headers)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return Refusal(code_of(status), f"the frontend answered {status}", headers)
