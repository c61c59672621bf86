"""How mode `kv` weighs its costs, as flags, variables and requests say it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec

from dynamo.frontend.openai.nvext import RouterConfigOverride
from dynamo.llm.kv.cost import Weights
from dynamo.llm.kv_router.settings import KvRouterSettings


@dataclass(frozen=True)
class KvOptions(KvRouterSettings):
    """Options of a frontend that routes in kv mode."""

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
