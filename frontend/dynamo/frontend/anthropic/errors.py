"""Errors as Anthropic's API has them: the frontend's own, in that shape."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from dynamo.frontend.anthropic.models import VERSION
from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.requests import Scope, header, request_id

PATH: Final = "/v1/messages"
MODELS: Final = "/v1/models"
ID_HEADER: Final = b"request-id"
"""Where its SDKs look for a request's id, with errors, too."""
THREAD_NOT_FOUND: Final = "thread_not_found"
THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
_TYPES: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


_TOO_LONG: Final = re.compile(
    r"This model's maximum context length is (\d+) tokens, but the prompt has (.*?\d+) tokens"
)


class MessagesError(ApiError):
    """An answer that is an error, in the shape of the Messages API."""

    request_id: str = ""
    """The request's, where it has come so far as to have one."""

    @classmethod
    def of(cls, error: ApiError, request_id: str = "") -> MessagesError:
        """Return the same error in this shape."""
        if isinstance(error, cls):
            return error
        made = cls(
            error.status,
            _in_their_words(error),
            code=error.code,
            kind=error.kind,
            param=error.param,
            headers=error.headers,
        )
        made.request_id = request_id
        return made

    def told(self) -> dict[str, Any]:
        """Return the object that clients read."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        error: dict[str, Any] = {"type": _TYPES.get(self.status, other), "message": self.message}
        if self.code in (THREAD_NOT_FOUND, THREAD_UNSUPPORTED):  # the SDK reads it, and goes on without a thread
            error["details"] = {"error_code": self.code, "unsupported": ["thread"]}
        return {"type": "error", "error": error, **({"request_id": self.request_id} if self.request_id else {})}

    def body(self) -> bytes:
        return msgspec.json.encode(self.told())


def _in_their_words(error: ApiError) -> str:
    """Return an error's message; agents know by Anthropic's own that they must shorten a conversation."""
    if error.code == "context_length_exceeded" and (match := _TOO_LONG.match(error.message)):
        return f"prompt is too long: {match[2]} tokens > {match[1]} maximum"
    return error.message


def is_theirs(scope: Scope) -> bool:
    """Tell whether a request is one of Anthropic's API: models are asked for by the same path as in OpenAI's."""
    path = scope["path"]
    if path == PATH or path.startswith(f"{PATH}/"):
        return True
    return (path == MODELS or path.startswith(f"{MODELS}/")) and header(scope, VERSION.encode()) is not None


def id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers by which a client finds its request again: another one with Anthropic's API."""
    rid = request_id(scope).encode()
    return [(b"x-request-id", rid), *([(ID_HEADER, rid)] if is_theirs(scope) else [])]


def identified(scope: Scope, error: ApiError) -> ApiError:
    """Return an error in that shape, with its request's id among its headers: for who answers where no route does."""
    answer = in_words_of(scope, error)
    answer.headers += [(name.decode(), value.decode()) for name, value in id_headers(scope)]
    return answer


def in_words_of(scope: Scope, error: ApiError) -> ApiError:
    """Return an error in the shape of the API that a request is one of."""
    return MessagesError.of(error, request_id(scope)) if is_theirs(scope) else error
