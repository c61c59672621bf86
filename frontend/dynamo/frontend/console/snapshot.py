"""What the console's page is sent: models, workers, limits and the latest choices, as JSON. Pure over the pool.

It names no caller, no request and no word of a prompt: whoever has a key, or is let in without one, may read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.console.workers import RestartsOf, workers_of
from dynamo.frontend.limits.concurrency_limits import ConcurrencyLimiter
from dynamo.frontend.request_log.placements import RecentPlacement
from dynamo.frontend.routing.model_pool import ModelPool

MOST_MODELS: Final = 256
MOST_CALLERS: Final = 16


def snapshot(
    pool: ModelPool,
    restarts: RestartsOf,
    connected: bool,
    recent: Sequence[RecentPlacement],
    limiter: ConcurrencyLimiter | None = None,
) -> bytes:
    """Return the whole of it as one event of a stream."""
    fields = workers_of(pool, connected, restarts)
    fields["limits"] = None if limiter is None else _limits(limiter)
    fields["models"] = [
        {
            "id": models.name, "types": pool.types(models.name), "context": models.card.context_length,
            "images": models.card.images is not None, "router": models.mode.value,
        }
        for models in pool.served()[:MOST_MODELS]
    ]  # fmt: skip
    fields["routes"] = [_route(item) for item in recent]
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _limits(limiter: ConcurrencyLimiter) -> dict[str, Any]:
    used, limits = limiter.in_use(MOST_CALLERS), limiter.limits
    return {
        "in_flight": used.inside, "most": limits.requests, "most_per_client": limits.per_client,
        "callers": used.callers, "busiest": used.busiest,
    }  # fmt: skip


def _route(item: RecentPlacement) -> dict[str, Any]:
    placement = item.placement
    return {
        "number": item.number, "model": item.model, "worker": f"{placement.instance:014x}", "mode": item.mode,
        "reason": item.reason, "prefill": placement.prefill, "cached": placement.overlap_blocks,
        "blocks": placement.prompt_blocks, "cost": placement.cost and round(placement.cost, 3),
        "others": [{"worker": f"{instance:014x}", "cost": round(cost, 3)} for instance, cost in placement.others],
    }  # fmt: skip
