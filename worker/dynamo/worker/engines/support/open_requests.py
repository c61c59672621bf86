"""The requests that an engine answers just now, and their sinks: nothing reaches one after its end.

On the worker's loop only; what an engine's threads say comes over `loop_bridge.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import Disconnected, DynamoException, EngineShutdown
from dynamo.worker.engine import Sink
from dynamo.worker.engines.support.request_checks import check_open, room_for

J = TypeVar("J", bound=Hashable)


class EngineOutput(NamedTuple):
    """Meaning of one output of an engine."""

    ids: list[int]
    extras: dict[str, Any] | None
    """Of these tokens, and with the first of them of the prompt."""
    finish: str | None
    """One of `dynamo.llm.protocols`' reasons, where the answer ends with it."""
    ending: dict[str, Any] | None = None
    """Of the end."""


class OpenRequests(Generic[J]):
    """A request is named by whatever its engine tells it by."""

    def __init__(self) -> None:
        self._sinks: dict[J, Any] = {}
        self._closed = ""

    def __len__(self) -> int:
        return len(self._sinks)

    def __contains__(self, job: J) -> bool:
        return job in self._sinks

    def room(self, request: PreprocessedRequest, context: int) -> int:
        """Count the tokens that the context leaves for the answer of one more request.

        Raises `InvalidArgument` where it leaves none, `CapacityExceeded` where too many are here,
        `EngineShutdown` after `end_all`.
        """
        self.check_closed()
        room = room_for(request, context)
        check_open(len(self._sinks))
        return room

    def check_closed(self) -> None:
        """Raise `EngineShutdown` after `end_all`: another worker has an engine that works."""
        if self._closed:
            raise EngineShutdown(self._closed)

    def add(self, job: J, sink: Any) -> None:
        """Add a request that begins; `sink` is of the kind that its engine answers with."""
        self._sinks[job] = sink

    def push(self, job: J, *produced: Any) -> None:
        """Push what its sink takes."""
        if (sink := self._sinks.get(job)) is not None:
            sink.push(*produced)

    def hand(self, job: J, piece: EngineOutput) -> bool:
        """Push what a piece holds; True: there is nothing more to come, since it was the last, or nobody wants it."""
        sink: Sink | None = self._sinks.get(job)
        if sink is None:
            return True
        extras, ending = piece.extras, piece.ending
        if piece.ids or (extras and piece.finish is None):
            sink.push(piece.ids, extras)
            extras = None
        if piece.finish is None:
            return False
        del self._sinks[job]
        sink.finish(piece.finish, {**(extras or {}), **(ending or {})} or None)
        return True

    def finish(self, job: J, *ending: Any) -> None:
        """End it well."""
        if (sink := self._sinks.pop(job, None)) is not None:
            sink.finish(*ending)

    def fail(self, job: J, error: DynamoException) -> None:
        """End it badly."""
        if (sink := self._sinks.pop(job, None)) is not None:
            sink.fail(error)

    def drop(self, job: J) -> bool:
        """Drop a request that is aborted: its sink hears no more. False where it was over."""
        return self._sinks.pop(job, None) is not None

    def end_all(self, why: str = "the engine is stopped", *, died: bool = False) -> list[J]:
        """End all of them, retryably, and take nothing more; returns which they were.

        `died`: by itself. It may be one of them that killed it, so frontends count that as a lost worker.
        """
        self._closed = why
        jobs = list(self._sinks)
        for job in jobs:
            self.fail(job, Disconnected(why) if died else EngineShutdown(why))
        return jobs
