"""What `/health` says: the frontend's own state and, per model, who serves it. Pure over the pool.

A frontend without workers is healthy (it is there to answer 503 or to hold a request)
and says so; it is not while it has not read the instances yet, or is leaving. Of each instance
it says whether a request could go there now: the operator asks for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynamo.frontend.errors import model_not_found
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.frontend.routing.model_set import ModelSet


def health(pool: ModelPool, draining: bool, connected: bool = True) -> tuple[int, dict[str, Any]]:
    """Return status and body. Not `connected`: NATS is away, and with it every worker."""
    status, message = _state(pool, draining, connected)
    sets = pool.sets()
    served = [models for models in sets if models.served]
    instances = [entry for models in (*served, *pool.prefills.sets()) for entry in _instances(models, connected)]
    body: dict[str, Any] = {
        "status": "healthy" if status == 200 else "unhealthy",
        "message": message,
        "endpoints": sorted({f"dyn://{key.path}" for models in served for key in models.workers}),
        "instances": instances,
        "models": _models(sets),
    }
    broken = [
        {"instance_id": key.id, "endpoint": str(key.path), "model": name or None, "reason": why}
        for key, (name, why) in pool.broken().items()
    ]
    return status, body | ({"unreadable": broken} if broken else {})


def readiness(pool: ModelPool, name: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of one model's readiness, in NVIDIA Dynamo's form; raises 404 for a model unknown here."""
    own = [models for models in pool.sets() if models.name == name]
    if not own:
        raise model_not_found(name, [models.name for models in pool.sets()])
    namespaces: dict[str, Any] = {}
    for models in own:
        for key in models.workers:
            kinds = namespaces.setdefault(key.path.namespace, {"ready": False, "worker_types": {}})
            kinds["ready"] = kinds["ready"] or models.served
            count = kinds["worker_types"].setdefault("aggregated", {"workers": 0, "needs": []})
            count["workers"] += key in models.routable
    for about in namespaces.values():
        about |= {"present": [*about["worker_types"]], "missing_worker_types": []}
    ready = any(models.served for models in own)
    return (200 if ready else 503), {"model": name, "ready": ready, "namespaces": namespaces}


def _state(pool: ModelPool, draining: bool, connected: bool) -> tuple[int, str]:
    if draining:
        return 503, "the frontend is shutting down"
    if not pool.ready:
        return 503, "the instances have not been read yet"
    if not connected:
        return 200, "NATS is away: no worker can be asked until it is back"
    served = pool.served()
    if not served:
        return 200, "no model has a worker yet: requests are answered 503"
    return 200, f"{len(served)} model(s) served"


def _models(sets: list[ModelSet]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for models in sets:
        about = by_name.setdefault(models.name, {"status": "loading", "instances": 0})
        if models.served:
            about["status"] = "ready"
            about["instances"] += len(models.workers)
        elif models.failure:
            about["reason"] = models.failure
            if about["status"] != "ready":
                about["status"] = "failed"
    return by_name


def _instances(models: ModelSet, connected: bool) -> Iterator[dict[str, Any]]:
    asked = models.routable if connected else frozenset()
    for key, worker in models.workers.items():
        yield {
            "namespace": key.path.namespace,
            "component": key.path.component,
            "endpoint": key.path.endpoint,
            "instance_id": key.id,
            "transport": worker.instance.transport,
            "host": worker.instance.host,
            "routable": key in asked,
        }
