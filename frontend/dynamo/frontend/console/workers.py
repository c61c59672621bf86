"""The workers of a frontend, as its console shows them: state and load. Pure over the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.routing.model_set import ModelSet, Worker
from dynamo.runtime.names import InstanceKey

RestartsOf = Callable[[InstanceKey], int]
MOST_WORKERS: Final = 256
"""Workers that are listed: their text is written on the event loop."""


def workers_of(pool: ModelPool, connected: bool, restarts: RestartsOf) -> dict[str, Any]:
    """Return the workers up to a bound, and how many there are."""
    sets = [(models, "generate") for models in pool.sets()] + [(models, "prefill") for models in pool.prefills.sets()]
    rows = (row for models, role in sets for row in _rows(models, role, connected, restarts))
    return {"workers": list(islice(rows, MOST_WORKERS)), "total": sum(len(models.workers) for models, _ in sets)}


def _rows(models: ModelSet, role: str, connected: bool, restarts: RestartsOf) -> Iterator[dict[str, Any]]:
    routable = models.routable if connected else frozenset()
    for key, worker in models.workers.items():
        state = "ready" if key in routable else "away"
        yield {
            "id": f"{key.id:014x}", "model": models.name, "role": role, "card": models.digest[:16],
            "state": state if models.model is not None or role == "prefill" else "loading",
            "in_flight": worker.open_streams, "running": worker.running, "queue": worker.waiting,
            "kv_usage": _kv_usage(models, worker), "cache_hits": _cache_hits(worker),
            "restarts": restarts(key),
        }  # fmt: skip


def _cache_hits(worker: Worker) -> float | None:
    """Return the share of prompt tokens that came from its cache, in answers of this frontend; None before any."""
    return round(worker.cached_tokens / worker.prompt_tokens, 4) if worker.prompt_tokens else None


def _kv_usage(models: ModelSet, worker: Worker) -> float | None:
    """Return the share of KV blocks in use, as published or as the router counts; None where nobody knows."""
    total, used = worker.total_blocks * worker.ranks, worker.instance.figures.get("used_kv_blocks")
    if total <= 0:
        return None
    if not isinstance(used, int) and models.kv is not None:
        used = sum(models.load_of(worker, rank).blocks for rank in range(worker.ranks))
    return round(min(1.0, max(0, used) / total), 4) if isinstance(used, int) else None
