"""What `KvRouter` says of a prompt without routing it, in NVIDIA Dynamo's dicts: loads and overlaps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dynamo.llm.kv.index import Rank
from dynamo.llm.kv.scheduler import KvScheduler, Prompt

_OTHER_TIERS: Final = ("host_pinned", "disk", "host_pinned_extension", "disk_extension", "shared_beyond_device")
"""Beside the device's, the only one that the index knows."""


def potential_loads(scheduler: KvScheduler, prompt: Prompt, ranks: Sequence[Rank]) -> list[dict[str, int]]:
    """Return what each rank would have to do with `prompt`: tokens to prefill, blocks in use; and its requests."""
    prefill, blocks, requests, _ = scheduler.activity.loads(ranks, prompt.hashes)
    overlaps = scheduler.index.overlaps(prompt.hashes, ranks)
    return [
        {
            "worker_id": rank.instance,
            "dp_rank": rank.dp_rank,
            "potential_prefill_tokens": prefill[at] + max(0, prompt.tokens - overlaps[at] * scheduler.block_size),
            "potential_decode_blocks": blocks[at] + len(prompt.hashes),
            "active_requests": requests[at],
        }
        for at, rank in enumerate(ranks)
    ]


def overlap_scores(scheduler: KvScheduler, prompt: Prompt, ranks: Sequence[Rank]) -> dict[str, Any]:
    """Return how many blocks of `prompt` each rank holds. Only the device's tier is known; the others say 0."""
    return {
        "block_size": scheduler.block_size,
        "num_blocks": len(prompt.hashes),
        "shared_cache": {"enabled": False, "ranges": []},
        "workers": [
            {
                "worker_id": rank.instance,
                "dp_rank": rank.dp_rank,
                "device_blocks": held,
                **dict.fromkeys((f"{tier}_blocks" for tier in _OTHER_TIERS), 0),
            }
            for rank, held in zip(ranks, scheduler.index.overlaps(prompt.hashes, ranks), strict=True)
        ],
    }
