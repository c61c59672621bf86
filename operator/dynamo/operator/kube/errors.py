"""What an API server's refusal means for a pipeline: `verdict(error)`. Pure; called by the reconciler.

Some refusals only a change of the spec cures (`Stalled`), some pass by themselves, some say
that the object which was looked at is no more. A rule of what to do for each stands here once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dynamo.operator.conditions import Reason
from dynamo.operator.kinds import SECRETS
from dynamo.operator.status import Trouble

SLOW_SECONDS = 60.0
"""How long to wait for what people must do: a larger quota, a right."""
TRIES = 4
"""Looks in a row that must have failed before the status tells of it: some seconds, in which what passes has passed."""


_QUOTING = (400, 422, 500)
"""Codes of answers that may quote what was sent."""


class ApiError(Exception):
    """A request that was refused or not answered (`code` 0)."""

    def __init__(self, code: int, message: str, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.reason, self.retry_after = code, message, reason, retry_after


@dataclass(frozen=True)
class Gone:
    """The object isn't there any more; look again."""


@dataclass(frozen=True)
class Retry:
    """Passes by itself: try again, after `seconds` if the server named them."""

    seconds: float | None = None
    is_leaving: bool = False
    """The namespace is being deleted, and soon there is nothing to try."""


@dataclass(frozen=True)
class Refused:
    """Goes into the status; tried again only slowly, since time alone rarely helps."""

    trouble: Trouble
    seconds: float | None = None


Verdict = Gone | Retry | Refused


def error_of(code: int, body: str, headers: Mapping[str, str]) -> ApiError:
    """Out of an answer: the server's own sentence where it sent a Status."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    status = said if isinstance(said, dict) else {}
    message = str(status.get("message") or body.strip()[:500] or f"HTTP {code}")
    return ApiError(code, message, str(status.get("reason", "")), _seconds(headers.get("Retry-After")))


def verdict(error: ApiError) -> Verdict:
    """What to do about a refused write."""
    if error.code in (404, 410):
        return Gone()
    if error.code == 403:
        return _forbidden(error)
    if error.code in (400, 422) or _untypable(error):
        return Refused(Trouble(Reason.REFUSED, error.message, final=True))
    return Retry(error.retry_after)


def about(error: ApiError, kind: str, name: str) -> ApiError:
    """The same with the object's name; of a Secret without the server's words, since they may tell what is in it."""
    said = f"{kind} {name}: {error.message}" if name not in error.message else error.message
    if kind == SECRETS.kind and error.code in _QUOTING:
        said = f"{kind} {name} can't be written"
    return ApiError(error.code, said, error.reason, error.retry_after)


def failing(error: ApiError, failures: int) -> Refused | None:
    """What to tell of an error that should pass, when so many looks have failed before this one; None: nothing yet."""
    if failures + 1 < TRIES or is_leaving(error):
        return None
    said = f"{error.message} (HTTP {error.code})" if error.code else error.message
    return Refused(Trouble(Reason.API_SERVER_FAILING, said, final=False), error.retry_after)


def is_leaving(error: ApiError) -> bool:
    """Whether the namespace is being deleted."""
    found = verdict(error)
    return isinstance(found, Retry) and found.is_leaving


def _forbidden(error: ApiError) -> Refused | Retry:
    if "exceeded quota" in error.message:
        return Refused(Trouble(Reason.QUOTA_EXCEEDED, error.message, final=False), SLOW_SECONDS)
    if "being terminated" in error.message:
        return Retry(SLOW_SECONDS, is_leaving=True)
    return Refused(Trouble(Reason.FORBIDDEN, error.message, final=False), SLOW_SECONDS)


def _untypable(error: ApiError) -> bool:
    """Server-side apply answers 500 to a field that its schema lacks: the user's podTemplate, not the server."""
    return error.code == 500 and "failed to create typed patch object" in error.message


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
