"""The load of a pipeline's frontends, as `dynamo top` prints it: a table's rows, and the document of `-o json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec


class ModelLoad(msgspec.Struct, frozen=True):
    """A model between two scrapes; rates are a second's, times are seconds, None where nothing was measured."""

    model: str
    ready: bool
    in_flight: int
    queued: int
    requests: float
    tokens: float
    failed: float
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None


class WorkerLoad(msgspec.Struct, frozen=True):
    """A worker as a frontend knows it, by the console's names; None where its engine doesn't say."""

    id: str = ""
    model: str = ""
    role: str = ""
    state: str = ""
    in_flight: int | None = None
    running: int | None = None
    queue: int | None = None
    kv_usage: float | None = None


class WorkerList(msgspec.Struct, frozen=True):
    """What the console's workers route answers: the first ones, and how many there are."""

    workers: list[WorkerLoad] = []
    total: int = 0


class FrontendLoad(msgspec.Struct, frozen=True):
    """All frontends of a pipeline, or one by its URL; with an `error`, nothing else is known."""

    pipeline: str
    url: str
    """Of the first."""
    models: list[ModelLoad] = []
    workers: list[WorkerLoad] = []
    workers_total: int = 0
    error: str | None = None
    """Why none of them answers."""
    frontends: int = 1
    """How many there are."""
    unanswered: list[str] = []
    """Why some of them don't answer."""


def merged(lists: Sequence[WorkerList]) -> WorkerList:
    """Return the workers that any frontend knows.

    What frontends have there is summed. What a worker says of itself is the same for all, though some know it later.
    """
    workers: dict[str, WorkerLoad] = {}
    for worker in (worker for listed in lists for worker in listed.workers):
        known = workers.get(worker.id)
        workers[worker.id] = worker if known is None else _both(known, worker)
    hidden = max((listed.total - len(listed.workers) for listed in lists), default=0)
    return WorkerList(list(workers.values()), len(workers) + max(0, hidden))


def _both(one: WorkerLoad, other: WorkerLoad) -> WorkerLoad:
    return msgspec.structs.replace(
        one, state="ready" if "ready" in (one.state, other.state) else one.state,
        in_flight=_either(sum, one.in_flight, other.in_flight), running=_either(max, one.running, other.running),
        queue=_either(max, one.queue, other.queue), kv_usage=_either(max, one.kv_usage, other.kv_usage),
    )  # fmt: skip


def _either(both: Callable[[list[Any]], Any], one: float | None, other: float | None) -> Any:
    known = [value for value in (one, other) if value is not None]
    return both(known) if known else None
