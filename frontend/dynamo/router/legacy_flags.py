"""NVIDIA Dynamo's `python -m dynamo.router` flags that are no settings here."""

from __future__ import annotations

from typing import Final

from dynamo.llm.kv_router.legacy_flags import ROUTER
from dynamo.runtime.process.legacy_flags import PLANES, LegacyFlag, refused, renamed

_AT_THE_FRONTEND: Final = "the frontend has it: dynamo-frontend --router-mode kv"

FORMER: Final[tuple[LegacyFlag, ...]] = (
    *PLANES,
    *ROUTER,
    renamed("--assume-kv-reuse", "--router-assume-kv-reuse", switch=True),
    renamed("--no-assume-kv-reuse", "--no-router-assume-kv-reuse", switch=True),
    refused("--router-track-output-blocks --track-output-blocks", _AT_THE_FRONTEND, switch=True,
            env="DYN_ROUTER_TRACK_OUTPUT_BLOCKS"),
    refused("--router-queue-threshold --router-queue-policy", _AT_THE_FRONTEND,
            env="DYN_ROUTER_QUEUE_THRESHOLD, DYN_ROUTER_QUEUE_POLICY"),
    refused("--router-conditional-disagg", _AT_THE_FRONTEND, switch=True, env="DYN_ROUTER_CONDITIONAL_DISAGG"),
    refused("--router-conditional-disagg-config", _AT_THE_FRONTEND, env="DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG"),
)  # fmt: skip
