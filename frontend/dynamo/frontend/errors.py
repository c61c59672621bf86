"""Errors as the OpenAI API has them: one table from the runtime's errors to status and body.

Every route ends here: an `ApiError` is an answer, anything else is looked up in the
table. The body is always `{"error": {"message", "type", "param", "code"}}` with string
codes, before the first token as a response, after it as one event of the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import msgspec

from dynamo.llm.exceptions import http_status
from dynamo.llm.model_card import CHAT, COMPLETIONS, EMBEDDING
from dynamo.llm.processing.preprocess import ContextLengthExceeded
from dynamo.runtime import errors as runtime
from dynamo.runtime.errors import DynamoException


class FirstTokenTimeout(DynamoException):
    """A worker gave no first token in time."""

    code = "first_token_timeout"
    retryable = True


class StreamTimeout(DynamoException):
    """A worker's stream brought no token for too long."""

    code = "stream_timeout"
    retryable = True


class TakesWorkersDown(DynamoException):
    """The request was with two workers when they died."""

    code = "takes_workers_down"


INVALID: Final = "invalid_request_error"
UNAVAILABLE: Final = "service_unavailable"
API_ERROR: Final = "api_error"
RATE_LIMITED: Final = "rate_limit_exceeded"
UNKNOWN_PARAMETER: Final = "unknown_parameter"
REJECTED: Final = "rejected_by_engine"
"""An `HttpError` of a model's program."""
RETRY_AFTER_SECONDS: Final = 2
ROUTES: Final = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions", EMBEDDING: "/v1/embeddings"}
"""Which route asks a model for what."""
_PREFIX: Final = "/v1"
_KNOWN: Final = (*ROUTES.values(), "/v1/models", "/v1/responses", "/v1/messages")


MAX_MESSAGE: Final = 1000
"""Characters of an answer's sentence; whoever made it, it doesn't repeat what a client has sent at length."""
MAX_SHOWN: Final = 100
"""Of a client's own text in it."""
_COMPARED: Final = 200
"""Models that a misspelled name is compared with."""


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning where it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


def shown(value: Any) -> str:
    """Return a client's value as messages show it."""
    if isinstance(value, str):
        return repr(cut(value, MAX_SHOWN))
    return (
        cut(repr(value), MAX_SHOWN) if value is None or isinstance(value, (int, float)) else f"a {type(value).__name__}"
    )


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = INVALID,
        param: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        message = cut(message, MAX_MESSAGE)
        super().__init__(message)
        self.status, self.message, self.code, self.kind = status, message, code, kind
        self.param = None if param is None else cut(param, MAX_SHOWN)
        self.headers = [*headers]

    def body(self) -> bytes:
        return msgspec.json.encode(
            {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}
        )


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return 400: the client's mistake."""
    return ApiError(400, message, code=code, param=param)


def unavailable(message: str, code: str = "no_instances") -> ApiError:
    """Return 503: nothing serves this now; the client may try again."""
    again = [("retry-after", str(RETRY_AFTER_SECONDS))]
    return ApiError(503, message, code=code, kind=UNAVAILABLE, headers=again)


def overloaded(message: str, code: str) -> ApiError:
    """Return 503: the workers have too much to do; the client may try again."""
    return unavailable(message[:1].upper() + message[1:], code)


def over_quota(most: int) -> ApiError:
    """Return 429: this caller has as many requests here as one may have."""
    again = [("retry-after", str(RETRY_AFTER_SECONDS))]
    text = f"Concurrency limit of one caller reached: {most} of {most} requests in flight. Retry when one ends."
    return ApiError(429, text, code=RATE_LIMITED, kind="requests", headers=again)


def no_such_rank(field: str, rank: int, where: str, ranks: int) -> ApiError:
    """Return the answer to a request that names a data-parallel rank which isn't there."""
    there = "rank 0 only" if ranks == 1 else f"ranks 0 to {ranks - 1}"
    return bad_request(f"{field}: there is no data-parallel rank {rank}; {where} has {there}.", field)


def pinned_gone(field: str, instance: int, model: str) -> ApiError:
    """Return 503: the request names its worker, which isn't there; another one may be named."""
    error = unavailable(f"{field}: instance {instance} doesn't serve model '{model}' now; name another one, or none.")
    error.param = field
    return error


def model_not_found(name: str, known: Sequence[str]) -> ApiError:
    """Return 404: other models are served, not this one."""
    name = cut(name, MAX_SHOWN)
    near = get_close_matches(name, known[:_COMPARED], n=1)
    hint = f" Did you mean '{near[0]}'?" if near else f" Served here: {', '.join(sorted(known)[:10])}."
    return ApiError(404, f"The model '{name}' does not exist.{hint}", code="model_not_found", param="model")


def wrong_route(name: str, does: str, others: Sequence[str], able: Sequence[str]) -> ApiError:
    """Return 404: the model is there, and doesn't answer what this route asks; `able` are those that do."""
    here = ROUTES[does]
    there = " and ".join(f"POST {ROUTES[kind]}" for kind in others if kind in ROUTES) or "other requests"
    names = ", ".join(f"'{model}'" for model in able[:10])
    hint = f"Models here that answer POST {here}: {names}." if able else f"No model here answers POST {here}."
    text = f"The model '{name}' doesn't answer POST {here}; it answers {there}. {hint}"
    return ApiError(404, text, code="model_not_found", param="model")


def unknown_route(method: str, path: str) -> ApiError:
    """Return 404; a client's base URL often lacks `/v1`, or has it twice."""
    near = _PREFIX + path.removeprefix(_PREFIX).removeprefix(_PREFIX).rstrip("/")
    hint = f". Did you mean {near}?" if near != path and near in _KNOWN else ""
    text = f"Unknown route: {cut(method, MAX_SHOWN)} {cut(path, MAX_SHOWN)}{hint}"
    return ApiError(404, text, code="unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> ApiError:
    message = f"Method {cut(method, MAX_SHOWN)} is not allowed for {cut(path, MAX_SHOWN)}; use {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers=[("allow", allowed)])


def too_large(limit: int) -> ApiError:
    size = f"{limit / 1024 / 1024:g} MB" if limit >= 1 << 20 else f"{limit / 1024:g} KB"
    message = f"The request body is larger than the limit of {size}."
    return ApiError(413, message, code="request_too_large", headers=[("connection", "close")])


def internal() -> ApiError:
    """Return 500 for what should not happen; the cause is in the log, under the request's id."""
    message = "The server had an error while processing the request; its log has the cause under this x-request-id."
    return ApiError(500, message, code="internal_error", kind=API_ERROR)


class _Row(NamedTuple):
    status: int
    kind: str
    code: str | None = None


_TABLE: Final[dict[type[runtime.DynamoException], _Row]] = {
    ContextLengthExceeded: _Row(400, INVALID, "context_length_exceeded"),
    runtime.InvalidArgument: _Row(400, INVALID, "invalid_value"),
    runtime.NoInstances: _Row(503, UNAVAILABLE),
    runtime.CannotConnect: _Row(503, UNAVAILABLE),
    runtime.ConnectionTimeout: _Row(503, UNAVAILABLE),
    runtime.WorkerUnavailable: _Row(503, UNAVAILABLE),
    runtime.CapacityExceeded: _Row(503, UNAVAILABLE),
    runtime.Disconnected: _Row(500, API_ERROR),
    runtime.StreamIncomplete: _Row(500, API_ERROR),
    runtime.EngineShutdown: _Row(500, API_ERROR),
    runtime.EngineError: _Row(500, API_ERROR),
    runtime.ProtocolMismatch: _Row(500, API_ERROR),
    runtime.Cancelled: _Row(499, API_ERROR),
    runtime.DeadlineExceeded: _Row(504, API_ERROR),
    FirstTokenTimeout: _Row(504, API_ERROR),
    StreamTimeout: _Row(504, API_ERROR),
    TakesWorkersDown: _Row(422, INVALID),
}


def to_api_error(error: BaseException) -> ApiError:
    """Return the answer to a request that ended with `error`."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, runtime.DynamoException):
        return internal()
    if (asked := http_status(error)) is not None:
        return ApiError(asked, error.message, code=REJECTED)
    row = next((_TABLE[kind] for kind in type(error).__mro__ if kind in _TABLE), _Row(500, API_ERROR))
    headers = [("retry-after", str(RETRY_AFTER_SECONDS))] if row.status == 503 else []
    return ApiError(
        row.status,
        error.message,
        code=row.code or error.code,
        kind=row.kind,
        headers=headers,
    )
