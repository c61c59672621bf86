"""Writes the reference of errors: every code with its status, message, cause and remedy, and its other names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from docs.generate.api.error_codes import GROUPS, Error
from docs.generate.markdown import anchor, code, page, prose, table

from dynamo.frontend.anthropic.errors import MessagesError
from dynamo.frontend.errors import RETRY_AFTER_SECONDS
from dynamo.frontend.kserve.status_codes import code_of
from dynamo.frontend.metrics import error_type

HEAD: Final = """# Errors

Made from the frontend's code by `make generate`; don't edit it by hand.

An error is an HTTP status and a JSON body. `code` is stable: programs may compare it. `message` is for people, and may
change. `param` names the field or header, where there is one.

```json
{"error": {"message": "The model 'x' does not exist.", "type": "invalid_request_error", "param": "model",
           "code": "model_not_found"}}
```

In a stream that has begun, the same object is the last event, without `data: [DONE]`: the status was sent already.
`/v1/messages` answers in Anthropic's shape: `{"type": "error", "error": {"type", "message"}, "request_id"}`. gRPC has a
status code. `x-request-id` of the answer finds the request in the logs of frontend and worker.
"""
_RETRY: Final = (
    f"Answers with 503 and 429 carry `Retry-After: {RETRY_AFTER_SECONDS}`. OpenAI's clients retry them, and 500, 408 "
    "and 409, by themselves. `dynamo_frontend_rejected_requests_total` counts them by code."
)
_OTHERS: Final = (
    "The tables name each error for other clients: `type` in `/v1/messages`, gRPC's status, and the label `error_type` "
    "of the metrics."
)
_COLUMNS: Final = ("code", "status", "/v1/messages", "gRPC", "error_type")


def render() -> str:
    """Write the whole page."""
    parts = [HEAD, prose(_RETRY), prose(_OTHERS)]
    for title, rows in GROUPS.items():
        parts += [f"## {title}", table(_COLUMNS, (_row(name, error) for name, error in rows.items()))]
        for name, error in rows.items():
            parts += _entry(name, error)
    return page(parts)


def _row(name: str, error: Error) -> tuple[str, ...]:
    link = f"[`{name}`](#{anchor(name)})"
    messages = [MessagesError(status, "", code=name).told()["error"]["type"] for status in error.statuses]
    codes = [code_of(status, name) for status in error.statuses]
    kinds = [error_type(status, name) for status in error.statuses]
    return link, _listed(error.statuses), _listed(messages), _listed(codes), _listed(kinds)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def _entry(name: str, error: Error) -> Iterator[str]:
    yield f"### {name}"
    yield prose(f"Status {_listed(error.statuses)}." + (f" *Message:* {code(error.message)}" if error.message else ""))
    yield prose(f"*Cause:* {error.cause}")
    yield prose(f"*Fix:* {error.remedy}")
