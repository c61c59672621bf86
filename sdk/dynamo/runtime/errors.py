"""Every error of the runtime, with the verdict that callers act on.

    DynamoException
    ├── InvalidArgument      bad_request   the caller's mistake; the same request fails everywhere
    ├── NoInstances          no_instances  nobody serves the endpoint now           (retryable)
    ├── CannotConnect        unreachable   the instance or the bus does not answer  (retryable)
    ├── ConnectionTimeout    timeout       no acceptance in time                    (retryable)
    ├── WorkerUnavailable    draining      the instance is leaving                  (retryable)
    ├── CapacityExceeded     full          the instance has no room                 (retryable)
    ├── Disconnected         worker_lost   the instance died with the stream open   (retryable)
    ├── StreamIncomplete     incomplete    a frame was lost, or the worker left unseen (retryable)
    ├── EngineShutdown       shutdown      the engine stopped with the stream open  (retryable)
    ├── EngineError          engine_error  the engine failed on this request
    ├── ProtocolMismatch     version       the two sides speak different versions
    ├── Cancelled            cancelled     the caller went away
    ├── DeadlineExceeded     deadline      the request's own time limit
    └── Unknown              unknown       a code that this version does not know

`retryable` says that another instance may well succeed; nothing in here decides
whether to try. Names follow `dynamo.llm.exceptions` of NVIDIA Dynamo where it has one.
"""

from __future__ import annotations

from typing import ClassVar


class DynamoException(Exception):  # noqa: N818 - NVIDIA Dynamo's public name
    """Base of all errors that cross the runtime; `code` travels on the wire."""

    code: str = "unknown"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message or type(self).__doc__ or self.code)

    @property
    def message(self) -> str:
        return str(self)


class InvalidArgument(DynamoException):
    """The request can't be served as it is."""

    code = "bad_request"


class NoInstances(DynamoException):
    """No instance serves this endpoint now."""

    code = "no_instances"
    retryable = True


class CannotConnect(DynamoException):
    """The instance does not answer."""

    code = "unreachable"
    retryable = True


class ConnectionTimeout(DynamoException):
    """The instance did not accept the request in time."""

    code = "timeout"
    retryable = True


class WorkerUnavailable(DynamoException):
    """The instance is leaving and takes nothing new."""

    code = "draining"
    retryable = True


class CapacityExceeded(DynamoException):
    """The instance has no room for the request."""

    code = "full"
    retryable = True


class Disconnected(DynamoException):
    """The instance was lost while it streamed."""

    code = "worker_lost"
    retryable = True


class StreamIncomplete(DynamoException):
    """A part of the stream was lost on the way."""

    code = "incomplete"
    retryable = True


class EngineShutdown(DynamoException):
    """The engine stopped while it streamed."""

    code = "shutdown"
    retryable = True


class EngineError(DynamoException, ValueError):  # callers of NVIDIA Dynamo catch a ValueError
    """The engine failed on this request."""

    code = "engine_error"


class ProtocolMismatch(DynamoException):
    """The two sides speak different protocol versions."""

    code = "version"


class Cancelled(DynamoException):
    """The caller went away."""

    code = "cancelled"


class DeadlineExceeded(DynamoException):
    """The request's time limit passed."""

    code = "deadline"


class Unknown(DynamoException):
    """An error whose code this version does not know; it keeps it."""

    def __init__(self, message: str = "", code: str = "unknown") -> None:
        super().__init__(message)
        self.code = code


_BY_CODE: dict[str, type[DynamoException]] = {
    kind.code: kind
    for kind in (
        InvalidArgument, NoInstances, CannotConnect, ConnectionTimeout, WorkerUnavailable, CapacityExceeded,
        Disconnected, StreamIncomplete, EngineShutdown, EngineError, ProtocolMismatch, Cancelled,
        DeadlineExceeded,
    )
}  # fmt: skip


def from_code(code: str, message: str) -> DynamoException:
    """Rebuild an error that came over the wire as `(code, message)`."""
    known = _BY_CODE.get(code)
    return Unknown(message, code) if known is None else known(message)
