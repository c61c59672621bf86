"""`dynamo.llm.exceptions`: the runtime's errors under NVIDIA Dynamo's module name, and `HttpError`."""

from __future__ import annotations

import logging
from typing import Final

from dynamo.runtime.errors import Cancelled as Cancelled
from dynamo.runtime.errors import CannotConnect as CannotConnect
from dynamo.runtime.errors import CapacityExceeded as CapacityExceeded
from dynamo.runtime.errors import ConnectionTimeout as ConnectionTimeout
from dynamo.runtime.errors import Disconnected as Disconnected
from dynamo.runtime.errors import DynamoException as DynamoException
from dynamo.runtime.errors import EngineError
from dynamo.runtime.errors import EngineShutdown as EngineShutdown
from dynamo.runtime.errors import InvalidArgument as InvalidArgument
from dynamo.runtime.errors import StreamIncomplete as StreamIncomplete
from dynamo.runtime.errors import Unknown as Unknown
from dynamo.runtime.errors import WorkerUnavailable as WorkerUnavailable

log = logging.getLogger(__name__)

LONGEST: Final = 8192
"""Characters of a message."""
_WIRE: Final = "http_"


class HttpError(Exception):
    """Raised by a `generate`: the status and the sentence that the HTTP client gets.

    `code` is the status, 0 to 599; only those from 400 to 499 reach the client, others are a 500. Raises `ValueError`
    where it is none; messages longer than 8,192 characters are cut.
    """

    def __init__(self, code: int, message: str) -> None:
        if type(code) is not int or not 0 <= code < 600:
            raise ValueError(f"the code of an HttpError is a status from 0 to 599, not {code!r}")
        if not isinstance(message, str):
            raise ValueError(f"the message of an HttpError is a text, not {type(message).__name__}")
        if len(message) > LONGEST:
            log.warning("the message of an HttpError has %d characters; %d are sent", len(message), LONGEST)
            message = message[: LONGEST - 3] + "..."
        self.code, self.message = code, message
        super().__init__(f"HTTP {code}: {message}")


class RouterQueueLimitExceeded(CapacityExceeded):
    """Never raised here: a full queue is `CapacityExceeded`, which a program that excepts this one doesn't need."""


class SelectionServiceError(DynamoException):
    """Never raised here: there is no selection service."""


def on_the_wire(error: HttpError) -> DynamoException:
    """Return the error that carries an `HttpError` to the frontend."""
    if not 400 <= error.code < 500:
        return EngineError(error.message or f"the engine answered HTTP {error.code}")
    return Unknown(error.message or f"HTTP {error.code}", f"{_WIRE}{error.code}")


def http_status(error: DynamoException) -> int | None:
    """Return the status that a `generate` asked for; None: it did not."""
    status = error.code.removeprefix(_WIRE)
    return int(status) if error.code.startswith(_WIRE) and status.isdecimal() and 400 <= int(status) < 500 else None
