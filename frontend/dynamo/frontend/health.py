"""What `/health` says: the frontend's own state and, per model, who serves it. Pure over the pool.

A frontend without workers is healthy (it is there to answer 503 or to hold a request)
and says so; it is not while it has not read the instances yet, or is leaving.
"""

from __future__ import annotations

from typing import Any

from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.models import ModelPool


def health(pool: ModelPool, draining: bool) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    status, message = _state(pool, draining)
    sets = pool.sets()
    served = [one for one in sets if one.served]
    instances = [_instance(key, seat.instance) for one in served for key, seat in one.seats.items()]
    body: dict[str, Any] = {
        "status": "healthy" if status == 200 else "unhealthy",
        "message": message,
        "endpoints": sorted({f"dyn://{key.path}" for one in served for key in one.seats}),
        "instances": instances,
        "models": _models(sets),
    }
    broken = [
        {"instance_id": key.id, "endpoint": str(key.path), "model": name or None, "reason": why}
        for key, (name, why) in pool.broken().items()
    ]
    return status, body | ({"unreadable": broken} if broken else {})


def _state(pool: ModelPool, draining: bool) -> tuple[int, str]:
    if draining:
        return 503, "the frontend is shutting down"
    if not pool.ready:
        return 503, "the instances have not been read yet"
    served = pool.served()
    if not served:
        return 200, "no model has a worker yet: requests are answered 503"
    return 200, f"{len(served)} model(s) served"


def _models(sets: list[ModelSet]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in sets:
        about = found.setdefault(one.name, {"status": "loading", "instances": 0})
        if one.served:
            about["status"] = "ready"
            about["instances"] += len(one.seats)
        elif one.failure:
            about["reason"] = one.failure
            if about["status"] != "ready":
                about["status"] = "failed"
    return found


def _instance(key: Any, instance: Any) -> dict[str, Any]:
    return {
        "namespace": key.path.namespace,
        "component": key.path.component,
        "endpoint": key.path.endpoint,
        "instance_id": key.id,
        "transport": instance.transport,
    }
