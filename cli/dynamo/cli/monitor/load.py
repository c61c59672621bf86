"""The load of a frontend, as `dynamo top` prints it: a table's rows, and the document of `-o json`."""

from __future__ import annotations

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
    """One frontend; with an `error`, nothing else is known."""

    pipeline: str
    url: str
    models: list[ModelLoad] = []
    workers: list[WorkerLoad] = []
    workers_total: int = 0
    error: str | None = None
