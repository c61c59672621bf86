"""Headers that the frontend reads and writes; a test holds that it knows each of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from dynamo.frontend.http.requests import TIMEOUT_HEADER
from dynamo.frontend.routing import hints


class Header(NamedTuple):
    """A header, its other names, and its meaning."""

    names: tuple[str, ...]
    text: str


REQUESTS: Final[tuple[Header, ...]] = (
    Header(("authorization", "x-api-key"), "The caller's key: `Bearer KEY`, or `KEY` in `x-api-key`."),
    Header(
        ("x-request-id", "x-dynamo-request-id"),
        "Id for logs and traces; returned with the answer. The frontend makes one if it is missing.",
    ),
    Header((TIMEOUT_HEADER,), "Milliseconds for the whole request; afterwards the client gets 504 `deadline`."),
    Header(("x-tenant-id",), "Names the caller for limits per caller; set it in a gateway that checks keys."),
    Header(hints.WORKER_HEADERS, "Instance id of the worker that must take the request."),
    Header(hints.PREFILL_HEADERS, "Instance id of the prefill worker that must compute the prompt."),
    Header(hints.RANK_HEADERS, "Data-parallel rank of the worker."),
    Header(hints.PREFILL_RANK_HEADERS, "Data-parallel rank of the prefill worker."),
    Header((hints.PRIORITY,), "Priority where requests wait; a higher number goes first."),
    Header((hints.STRICT_PRIORITY,), "Priority that is compared before the other one, 0 or more."),
    Header(hints.SESSION_HEADERS, "Session whose requests stay with a worker (`--router-session-affinity-ttl-secs`)."),
    Header((hints.SESSION_FINAL.decode(),), "`true`: this request is the last one of its session."),
    Header(("traceparent",), "Trace that the request belongs to (W3C); needs `OTEL_EXPORT_ENABLED=1`."),
    Header(("anthropic-version",), "Version of the Messages API; 2023-06-01 is the one there is."),
)
ANSWERS: Final[tuple[Header, ...]] = (
    Header(("x-request-id",), "Id of the request, as in the logs of frontend and worker."),
    Header(("request-id",), "The same, for clients of Anthropic's API."),
    Header(("retry-after",), "Seconds after which to try again; with 429 and 503."),
    Header(("www-authenticate",), "`Bearer`, with 401."),
    Header(("allow",), "Methods of the route, with 405."),
    Header(("x-dynamo-ignored-fields",), "Fields of the body that are unknown and were ignored."),
    Header(("x-accel-buffering",), "`no`, with streams: proxies such as nginx then pass on each event at once."),
)
