"""A request for vectors at the mocker: each input takes the simulated time of its prompt, like any prompt there.

Of a request as many inputs are scheduled at once as the engine runs sequences; the next ones follow as those are done,
so that a large request leaves room for others and is dropped at once when its client leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.worker.engine import Sink, VectorSink
from dynamo.worker.engines.mocker.vectors import made_up

Schedule = Callable[[list[int], Sink], Callable[[], None]]
"""Queues a prompt with the sink for its one token; the result takes it back."""


class Batch:
    """One request."""

    def __init__(self, request: EmbeddingRequest, sink: VectorSink, own: int, schedule: Schedule) -> None:
        made_up(request.token_ids[0], own, request.dimensions)  # refuses what can't be asked, now
        self._request, self._sink, self._own, self._schedule = request, sink, own, schedule
        self._next: Iterator[int] = iter(range(len(request.token_ids)))
        self._left = len(request.token_ids)
        self._aborts: dict[int, Callable[[], None]] = {}

    def start(self, side_by_side: int) -> Callable[[], None]:
        """Schedule the first inputs; the result ends it early."""
        for _ in range(side_by_side):
            self._more()
        return self.abort

    def abort(self) -> None:
        self._next = iter(())
        aborts, self._aborts = self._aborts, {}
        for abort in aborts.values():
            abort()

    def done(self, index: int) -> None:
        """Note that the prompt of one input has been computed."""
        if self._aborts.pop(index, None) is None:
            return
        self._sink.push(index, made_up(self._request.token_ids[index], self._own, self._request.dimensions))
        self._left -= 1
        if self._left:
            self._more()
        else:
            self._sink.finish()

    def failed(self, error: Exception) -> None:
        """Fail the request, since one input failed."""
        if self._aborts:
            self.abort()
            self._sink.fail(error)

    def _more(self) -> None:
        index = next(self._next, None)
        if index is not None:
            self._aborts[index] = self._schedule(self._request.token_ids[index], _Input(self, index))


class _Input:
    """The sink of one prompt."""

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        """Note that the prompt is computed, which is all that its one token says."""

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        self._batch.done(self._index)

    def fail(self, error: Exception) -> None:
        self._batch.failed(error)
