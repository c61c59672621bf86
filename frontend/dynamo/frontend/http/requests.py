"""Reading HTTP requests in plain ASGI: headers, the request id, the bounded body. Used by every POST route."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from dynamo.frontend.errors import ApiError, bad_request, too_large
from dynamo.frontend.http.body_budget import FREE
from dynamo.runtime.http.protocol import Fault

Receive = Callable[[], Awaitable[dict[str, Any]]]
Scope = dict[str, Any]
_HEADERS: Final = "dynamo.headers"
_ID: Final = "dynamo.request_id"
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_DIGITS: Final = re.compile(rb"[0-9]{1,12}")
_SHOWN: Final = 100
"""Characters of a client's text that a message repeats."""
TIMEOUT_HEADER: Final = "x-request-timeout-ms"
_TIMEOUT: Final = TIMEOUT_HEADER.encode()
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
TOO_MUCH_AROUND: Final = "The request has more around its body than is taken: trailers, or chunks of a few bytes."


class ClientGone(Exception):  # noqa: N818 - nobody sees it as an error
    """The client went away before its request was whole; nobody is left to answer."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return all headers by their lower-case names; of several with one name the last."""
    headers: dict[bytes, bytes] | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = dict(scope["headers"])
    return headers


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header by its lower-case name."""
    headers: dict[bytes, bytes] | None = scope.get(_HEADERS)
    return (headers_of(scope) if headers is None else headers).get(name)


def request_id(scope: Scope) -> str:
    """Return the client's `x-request-id` where it is usable, else a new one; the same whoever asks again.

    Without that header it is `x-dynamo-request-id`, by which older clients of NVIDIA Dynamo name theirs.
    """
    known: str | None = scope.get(_ID)
    if known is not None:
        return known
    headers = headers_of(scope)
    if (given := headers.get(b"x-request-id")) is None:
        given = headers.get(b"x-dynamo-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        rid = given.decode("ascii")
    else:
        # Unique is enough: nobody gains from guessing it, and the system's random source is a system call.
        rid = f"{random.getrandbits(128):032x}"
    scope[_ID] = rid
    return rid


def identified(scope: Scope, error: ApiError) -> ApiError:
    """Return an error with the id of its request among its headers."""
    error.headers.append(("x-request-id", request_id(scope)))
    return error


def refusal_of(fault: Fault, said: str, head: int) -> ApiError:
    """Return the answer to a request that is refused before it is whole; `head`: the most bytes of its headers."""
    match fault:
        case Fault.UNREADABLE:
            return ApiError(400, said or "This can't be read as a request of HTTP/1.1.", code="bad_http")
        case Fault.UNKNOWN_METHOD:
            return ApiError(501, "No route here has the request's method.", code="unknown_method")
        case Fault.URL_TOO_LONG:
            text = f"The request's URL is too long: it and the headers may have {head} bytes."
            return ApiError(414, text, code="url_too_long")
        case Fault.HEADERS_TOO_LARGE:
            text = f"The request's headers are larger than {head} bytes."
            return ApiError(431, text, code="headers_too_large")
        case Fault.TOO_LARGE:
            return ApiError(413, TOO_MUCH_AROUND, code="request_too_large")


def timeout_seconds(scope: Scope) -> float | None:
    """Return the time limit that the client set with `x-request-timeout-ms`; None: none."""
    given = header(scope, _TIMEOUT)
    if given is None:
        return None
    if not _DIGITS.fullmatch(given) or not 0 < int(given) <= MAX_TIMEOUT_MS:
        raise bad_request(f"{TIMEOUT_HEADER}: must be between 1 and {MAX_TIMEOUT_MS}.", TIMEOUT_HEADER)
    return int(given) / 1000


def check_json(scope: Scope) -> None:
    """Raise 415 for a body that says it is something else; none said counts as JSON, as curl users expect."""
    kind = header(scope, b"content-type")
    if kind is None or kind == b"application/json":
        return
    media = kind.partition(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        text = f"Content-Type {media[:_SHOWN].decode('latin-1')!r} is not supported; send application/json."
        raise ApiError(415, text, code="unsupported_media_type")


def announced_size(scope: Scope) -> int | None:
    """Return what `content-length` says; None: nothing."""
    given = header(scope, b"content-length")
    return int(given) if given is not None and _DIGITS.fullmatch(given) else None


async def read_body(
    scope: Scope, receive: Receive, limit: int, take: Callable[[int], Awaitable[None]] | None = None
) -> bytes:
    """Return the whole body; refused before it is read where it announces too much, else as soon as it is too much.

    `take` is asked for room, `limit` bytes, where a body of unknown length turns out not to be small.
    """
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and (len(announced) > 12 or int(announced) > limit):
        raise too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(body) > limit:
            raise too_large(limit)
        return body
    parts = bytearray(body)
    while message["type"] == "http.request" and message.get("more_body"):
        if take is not None and len(parts) > FREE:
            await take(limit)
            take = None
        message = await receive()
        parts += message.get("body", b"")
        if len(parts) > limit:
            raise too_large(limit)
    if message["type"] == "http.disconnect":
        raise ClientGone
    return bytes(parts)
