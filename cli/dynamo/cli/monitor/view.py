"""Models and workers as lines of 80 columns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.cli.monitor.load import ModelLoad, WorkerLoad
from dynamo.cli.tables import table
from dynamo.runtime.process.printable import visible

_NAME: Final = 18
_PLAIN: Final = 100_000
"""Numbers below have five digits at most; others are written as 1e+05."""
_MODELS: Final = ("MODEL", "REQ/S", "TOK/S", "ACTIVE", "QUEUE", "FAIL/S", "TTFT p50", "p95", "ITL p50")
_WORKERS: Final = ("WORKER", "MODEL", "STATE", "ACTIVE", "RUNNING", "QUEUE", "KV")


def lines(models: Sequence[ModelLoad], workers: Sequence[WorkerLoad], total: int) -> list[str]:
    """Lay both tables out, the workers' only where some are known."""
    if not models:
        return ["no model is served yet: `dynamo ps` shows what starts"]
    result = table([_MODELS, *map(_model, models)])
    if workers:
        result += ["", *table([_WORKERS, *map(_worker, workers)])]
    if total > len(workers):
        result.append(f"... and {_short(str(total - len(workers)), 12)} workers more")
    return result


def _model(load: ModelLoad) -> tuple[str, ...]:
    name = _short(load.model) if load.ready else f"{_short(load.model, 11)} (away)"
    return (
        name, _rate(load.requests), _rate(load.tokens), _count(load.in_flight), _count(load.queued),
        _rate(load.failed), _time(load.ttft_p50), _time(load.ttft_p95), _time(load.itl_p50),
    )  # fmt: skip


def _worker(load: WorkerLoad) -> tuple[str, ...]:
    model = f"{_short(load.model, 8)} (prefill)" if load.role == "prefill" else _short(load.model)
    kv = "-" if load.kv_usage is None else _short(f"{load.kv_usage * 100:.0f}%", 5)
    return (
        _short(load.id, 16), model, _short(load.state, 8), _count(load.in_flight), _count(load.running),
        _count(load.queue), kv,
    )  # fmt: skip


def _short(text: str, most: int = _NAME) -> str:
    """Return a stranger's words, without what would move the terminal."""
    text = visible(text)
    return text if len(text) <= most else text[: most - 1] + "…"


def _count(count: int | None) -> str:
    return "-" if count is None else str(count) if abs(count) < _PLAIN else f"{count:.0e}"


def _rate(value: float) -> str:
    if value >= _PLAIN:
        return f"{min(value, 9e99):.0e}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 10:
        return _short(f"{seconds:.0f}s", 6)
    if seconds >= 1:
        return f"{seconds:.1f}s"
    return f"{seconds * 1000:.0f}ms" if seconds >= 0.01 else f"{seconds * 1000:.1f}ms"
