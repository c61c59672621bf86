"""Flags of `dynamo-run` of 2025 and 2026 that are no settings here: renamed, needless or refused."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.load_balancing import ROUTER_MODES
from dynamo.runtime.process.legacy_flags import PLANES, LegacyFlag, needless, refused, renamed

FORMER: Final[tuple[LegacyFlag, ...]] = (
    *PLANES,
    renamed("--dist-init-addr", "--leader-addr", "{}"),
    needless("--max-num-batched-tokens", "it never did; --extra-engine-args says it to the engine"),
    needless("--kv-gpu-cache-usage-weight --kv-waiting-requests-weight", "load is counted in blocks since 0.3.2"),
    renamed("--no-kv-events", "--use-kv-events=false", switch=True),
    renamed("--kv-events", "--use-kv-events=true", switch=True),
    refused("--router-track-active-blocks", "a frontend always counts them", plain=["true"]),
    needless("--verbosity", "give -v or -vv"),
    refused("--router-mode", f"choose {', '.join(ROUTER_MODES[:-1])} or {ROUTER_MODES[-1]}",
            keeps=ROUTER_MODES),
)  # fmt: skip
GROUPS: Final = {
    "Model": ("model_", "context_length", "kv_cache_block_size", "chat_template", "dyn_"),
    "in=http, in=grpc": ("http_", "grpc_", "tls_", "cors_"),
    "in=batch": ("batch_",),
    "Requests": ("request_template",),
    "Engine": ("extra_engine", "tensor_parallel", "num_nodes", "node_rank", "leader_addr", "base_gpu"),
    "out=dyn (routing)": ("router_", "use_kv", "migration_", "discovery_"),
}
