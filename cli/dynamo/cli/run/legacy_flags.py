"""Flags of `dynamo-run` of 2025 and 2026 that are no settings here: renamed, needless or refused."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.flags import Former, needless, refused, renamed
from dynamo.runtime.planes import PLANES

FORMER: Final[tuple[Former, ...]] = (
    *PLANES,
    renamed("--dist-init-addr", "--leader-addr", "{}"),
    renamed("--router-kv-overlap-score-weight", "--kv-overlap-score-weight", "{}"),
    needless("--max-num-batched-tokens", "it never did; --extra-engine-args says it to the engine"),
    needless("--kv-gpu-cache-usage-weight --kv-waiting-requests-weight", "load is counted in blocks since 0.3.2"),
    renamed("--no-kv-events", "--use-kv-events=false", switch=True),
    renamed("--kv-events", "--use-kv-events=true", switch=True),
    refused("--router-track-active-blocks", "a frontend always counts them", plain=["true"]),
    needless("--verbosity", "give -v or -vv"),
    refused("--router-mode", "choose round-robin, random, least-loaded, power-of-two or kv",
            keeps=["round-robin", "random", "least-loaded", "power-of-two", "kv"]),
)  # fmt: skip
GROUPS: Final = {
    "Model": ("model_", "context_length", "kv_cache_block_size", "chat_template", "dyn_"),
    "in=http, in=grpc": ("http_", "grpc_", "tls_"),
    "in=batch": ("batch_",),
    "Requests": ("request_template",),
    "Engine": ("extra_engine", "tensor_parallel", "num_nodes", "node_rank", "leader_addr", "base_gpu"),
    "out=dyn (routing)": ("router_", "kv_overlap", "use_kv", "migration_", "discovery_"),
}
