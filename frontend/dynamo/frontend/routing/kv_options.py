"""How mode `kv` weighs its costs, as flags, variables and requests say it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import msgspec

from dynamo.frontend.openai.nvext import RouterConfigOverride
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv.index import SECONDS
from dynamo.runtime.process.settings import out_of_range, setting

OVERLAP_WEIGHT: Final = 2.0
"""What prefill weighs against decoding. NVIDIA Dynamo's 1 gave later first tokens, and later next ones, in every trace
that was simulated (docs/design/serving/kv.md, "The weight")."""
OVERLAP_CREDIT: Final = 1.1
"""A bit more than a block's computation: of two workers that would answer at the same time, the one that has it."""


@dataclass(frozen=True)
class KvOptions:
    """How a frontend routes in kv mode."""

    overlap_score_weight: float = setting(
        OVERLAP_WEIGHT, "How strongly the router prefers workers that cache the prompt, relative to balancing load "
        "(kv router); 0 ignores caches.",
        env="DYN_ROUTER_PREFILL_LOAD_SCALE", name="router_prefill_load_scale",
        aliases=(
            "--overlap-score-weight", "--router-kv-overlap-score-weight", "--kv-overlap-score-weight",
            "DYN_ROUTER_OVERLAP_SCORE_WEIGHT", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT", "DYN_OVERLAP_SCORE_WEIGHT",
        ),
    )  # fmt: skip
    overlap_score_credit: float = setting(
        OVERLAP_CREDIT, "Value of a cached block, relative to the cost of computing it (kv router).",
        env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", name="router_kv_overlap_score_credit",
    )  # fmt: skip
    overlap_score_credit_decay: float = setting(
        0.0, "Reduces the cache credit of workers with a longer prefill backlog (kv router); 0 turns it off.",
        env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", name="router_kv_overlap_score_credit_decay",
    )  # fmt: skip
    decode_request_weight: float = setting(
        0.0, "Cost of each request that runs on a worker, in blocks (kv router).",
        env="DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", name="router_decode_active_request_weight",
    )  # fmt: skip
    track_output_blocks: bool = setting(
        False, "Also count the KV blocks of generated tokens (kv router).", env="DYN_ROUTER_TRACK_OUTPUT_BLOCKS",
        name="router_track_output_blocks",
    )  # fmt: skip
    predict_seconds: float = setting(
        SECONDS, "Seconds a prompt is assumed to stay cached on workers that send no KV events (kv router).",
        env="DYN_ROUTER_TTL_SECS", name="router_ttl_secs", aliases=("--router-ttl", "DYN_ROUTER_TTL"),
    )  # fmt: skip
    temperature: float = setting(
        0.0,
        "Softmax temperature of the choice (kv router); 0 always takes the cheapest worker.",
        env="DYN_ROUTER_TEMPERATURE",
        name="router_temperature",
    )
    follow_events: bool = setting(
        True, "Track caches by the workers' KV events; else predict them (kv router).",
        env=("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
        flags=("--kv-events/--no-kv-events", "--router-kv-events/--no-router-kv-events"), name="use_kv_events",
    )  # fmt: skip
    replica_sync: bool = setting(
        True, "Exchange routing decisions with other frontends, so that each counts all requests (kv router).",
        env="DYN_ROUTER_REPLICA_SYNC", name="router_replica_sync",
    )  # fmt: skip

    def problem(self) -> str | None:
        """Return why these options can't be meant, in one sentence; None where they can."""
        costs = (
            "overlap_score_weight", "overlap_score_credit", "overlap_score_credit_decay", "decode_request_weight",
            "temperature",
        )  # fmt: skip
        return out_of_range(self, *costs) or out_of_range(self, "predict_seconds", above=True)

    def weights(self) -> Weights:
        """Return the costs; the weight of prefill, which is 0, takes the credit for caches away too."""
        return Weights(
            overlap_credit=self.overlap_score_credit if self.overlap_score_weight else 0.0,
            overlap_credit_decay=self.overlap_score_credit_decay, prefill_load_scale=self.overlap_score_weight,
            decode_request_weight=self.decode_request_weight,
        )  # fmt: skip

    def with_changes(self, changes: RouterConfigOverride) -> tuple[Weights, float]:
        """Return weights and temperature of a request that has its own words on them."""
        weights, weight = self.weights(), changes.overlap_score_weight
        if weight is not None:
            weights = dataclasses.replace(self, overlap_score_weight=weight).weights()
        if changes.overlap_score_credit is not None:
            weights = msgspec.structs.replace(weights, overlap_credit=changes.overlap_score_credit)
        if changes.prefill_load_scale is not None:
            weights = msgspec.structs.replace(weights, prefill_load_scale=changes.prefill_load_scale)
        temperature = changes.router_temperature
        return weights, self.temperature if temperature is None else temperature

    def to_decode(self, weighing: tuple[Weights, float] | None) -> tuple[Weights, float]:
        """Return costs for prompts that are computed elsewhere.

        A transfer brings all of a prompt, so caches and prefill save nothing.
        """
        weights, temperature = weighing or (self.weights(), self.temperature)
        return msgspec.structs.replace(weights, overlap_credit=0.0, prefill_load_scale=0.0), temperature
