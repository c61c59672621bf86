"""What an API server's refusal means for a pipeline: `verdict(error)`. Pure; called by the reconciler.

Some refusals only a change of the spec cures (`Stalled`), some pass by themselves, some say
that the object which was read is no more. A rule of what to do for each stands here once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dynamo.operator.api.conditions import Reason, Trouble
from dynamo.operator.kube.resources import SECRETS

SLOW_SECONDS = 60.0
"""How long to wait for what people must do: a larger quota, a right."""
TRIES = 4
"""Reconciles that must have failed in a row before the status reports it: some seconds, in which most errors pass."""


_UNFIT = (
    "failed to create typed patch object",
    "failed to convert new object",
    "unable to convert unstructured object",
    "etcdserver: request is too large",
    "trying to send message larger than max",
)
_QUOTING = (400, 413, 422, 500)
"""Codes of answers that may quote what was sent."""


class ApiError(Exception):
    """A request that was refused or not answered (`code` 0)."""

    def __init__(self, code: int, message: str, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.reason, self.retry_after = code, message, reason, retry_after


@dataclass(frozen=True)
class Gone:
    """Verdict: the object isn't there any more, reconcile again."""


@dataclass(frozen=True)
class Retry:
    """Verdict: it passes by itself, try again, after `seconds` if the server named them."""

    seconds: float | None = None
    is_leaving: bool = False
    """The namespace is being deleted, and soon there is nothing to try."""


@dataclass(frozen=True)
class Refused:
    """Verdict: it goes into the status; tried again only slowly, since time alone rarely helps."""

    trouble: Trouble
    seconds: float | None = None


Verdict = Gone | Retry | Refused


def error_of(code: int, body: str, headers: Mapping[str, str]) -> ApiError:
    """Return the error in an answer: the server's own sentence where it sent a Status."""
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = None
    status = parsed if isinstance(parsed, dict) else {}
    message = str(status.get("message") or body.strip()[:500] or f"HTTP {code}")
    return ApiError(code, message, str(status.get("reason", "")), _seconds(headers.get("Retry-After")))


def verdict(error: ApiError) -> Verdict:
    """Return what to do about a refused write."""
    if error.code in (404, 410):
        return Gone()
    if error.code == 403:
        return _forbidden(error)
    if error.code in (400, 413, 422) or _unfit(error):
        return Refused(Trouble(Reason.ADMISSION_REJECTED, error.message, final=True))
    return Retry(error.retry_after)


def about(error: ApiError, kind: str, name: str) -> ApiError:
    """Return the error with the object's name; of a Secret without the server's words, which may quote it."""
    text = f"{kind} {name}: {error.message}" if name not in error.message else error.message
    if kind == SECRETS.kind and error.code in _QUOTING:
        text = f"{kind} {name} can't be written"
    return ApiError(error.code, text, error.reason, error.retry_after)


def failing(error: ApiError, failures: int) -> Refused | None:
    """Return what the status reports of an error that should pass, after so many failures; None: nothing yet."""
    if failures + 1 < TRIES or is_leaving(error):
        return None
    text = f"{error.message} (HTTP {error.code})" if error.code else error.message
    return Refused(Trouble(Reason.API_SERVER_FAILING, text, final=False), error.retry_after)


def is_leaving(error: ApiError) -> bool:
    """Return whether the namespace is being deleted."""
    judgement = verdict(error)
    return isinstance(judgement, Retry) and judgement.is_leaving


def _forbidden(error: ApiError) -> Refused | Retry:
    if "exceeded quota" in error.message:
        return Refused(Trouble(Reason.QUOTA_EXCEEDED, error.message, final=False), SLOW_SECONDS)
    if "being terminated" in error.message:
        return Retry(SLOW_SECONDS, is_leaving=True)
    return Refused(Trouble(Reason.FORBIDDEN, error.message, final=False), SLOW_SECONDS)


def _unfit(error: ApiError) -> bool:
    """Return whether a 500 is about the user's podTemplate, not the server.

    Server-side apply answers 500 to what its schema lacks, what can't be converted, and what is too large.
    """
    return error.code == 500 and any(mark in error.message for mark in _UNFIT)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
