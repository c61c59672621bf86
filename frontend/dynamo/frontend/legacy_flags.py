"""NVIDIA Dynamo's frontend flags (0.4 to 1.6) that are no settings here: renamed, needless or refused.

What `dynamo.runtime.process.legacy_flags` makes of them is the same for all programs;
docs/reference/compatibility/index.md is made of this table.
"""

from __future__ import annotations

from typing import Final

from dynamo.llm.kv_router.legacy_flags import ROUTER
from dynamo.runtime.load_balancing import ROUTER_MODES
from dynamo.runtime.process.legacy_flags import PLANES, LegacyFlag, needless, refused, renamed

_WITH_WORKERS: Final = "a model's name, tokenizer and template come from its workers"

_COUNTED: Final = (
    needless("--track-active-blocks --router-track-active-blocks", "they are counted", switch=True,
             env="DYN_ROUTER_TRACK_ACTIVE_BLOCKS"),
    refused("--no-track-active-blocks --no-router-track-active-blocks",
            "a frontend always counts them; --router-mode round-robin needs none", switch=True),
    needless("--assume-kv-reuse --router-assume-kv-reuse", "shared blocks are counted once", switch=True,
             env="DYN_ROUTER_ASSUME_KV_REUSE"),
    refused("--no-assume-kv-reuse --no-router-assume-kv-reuse", "shared blocks are counted once; "
            "--router-prefill-load-scale 0 ignores caches", switch=True),
    needless("--router-track-prefill-tokens", "they are counted", switch=True, env="DYN_ROUTER_TRACK_PREFILL_TOKENS"),
    refused("--no-router-track-prefill-tokens", "a frontend always counts them", switch=True),
    renamed("--track-output-blocks", "--router-track-output-blocks", switch=True),
)  # fmt: skip

_TALKING: Final = (
    refused("-i --interactive", "`dynamo-run in=text out=dyn` chats with workers", switch=True),
    needless("--enable-anthropic-api", "/v1/messages is always served", switch=True, env="DYN_ENABLE_ANTHROPIC_API"),
    needless("--strip-anthropic-preamble", "it is left out", switch=True, env="DYN_STRIP_ANTHROPIC_PREAMBLE"),
    refused("--no-strip-anthropic-preamble", "a preamble that changes with each request would spoil every cache",
            switch=True),
    refused("--enable-streaming-tool-dispatch --enable-streaming-reasoning-dispatch",
            "streams carry OpenAI's chunks only", switch=True,
            env="DYN_ENABLE_STREAMING_TOOL_DISPATCH, DYN_ENABLE_STREAMING_REASONING_DISPATCH"),
    needless("--exclude-tools-when-tool-choice-none", "it is so", switch=True,
             env="DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE"),
    refused("--no-exclude-tools-when-tool-choice-none", "with tool_choice none a template sees no tools", switch=True),
    refused("--frontend-route-extension", "put a proxy with your routes in front",
            env="DYN_FRONTEND_ROUTE_EXTENSIONS"),
    refused("--metrics-prefix", "metrics are called dynamo_frontend_*; rename them in Prometheus' relabelling",
            plain=["dynamo_frontend"], env="DYN_METRICS_PREFIX"),
)  # fmt: skip

_MODELS: Final = (
    needless("--model-name --model-path", _WITH_WORKERS),
    needless("--kv-cache-block-size", "each worker says its own", env="DYN_KV_CACHE_BLOCK_SIZE"),
    refused("--chat-template", "the template is the model's, or its worker's --chat-template"),
    refused("--reasoning-parser --tool-call-parser", "the worker says it, for all frontends: its "
            "--dyn-reasoning-parser and --dyn-tool-call-parser"),
    refused("--dyn-chat-processor", "templates are rendered here", plain=["dynamo"], env="DYN_CHAT_PROCESSOR"),
    needless("--dyn-preprocess-workers", "--workers N serves with N processes", plain=["0"],
             env="DYN_PREPROCESS_WORKERS"),
    needless("--trust-remote-code --no-trust-remote-code", "no code of a model is run here", switch=True,
             env="DYN_TRUST_REMOTE_CODE"),
    needless("--tokenizer-fallback --no-tokenizer-fallback", "--tokenizer auto falls back by itself", switch=True,
             env="DYN_TOKENIZER_FALLBACK"),
    refused("--tokenizer", "choose auto, default or fastokens", keeps=["auto", "default", "fastokens"],
            env="DYN_TOKENIZER"),
    needless("--router-min-initial-workers", "--worker-wait-timeout-secs has requests wait for a first worker",
             plain=["0"], env="DYN_ROUTER_MIN_INITIAL_WORKERS"),
    refused("--router-mode", f"choose {', '.join(ROUTER_MODES[:-1])} or {ROUTER_MODES[-1]}; a request names its "
            "worker by the header x-dynamo-worker-instance-id",
            keeps=ROUTER_MODES, env="DYN_ROUTER_MODE"),
    needless("--custom-backend-metrics-endpoint --custom-backend-metrics-polling-interval",
             "workers publish their load in their records and on /metrics"),
    needless("--dyn-debug-perf", "-v and /metrics say where time goes", switch=True, env="DYN_DEBUG_PERF"),
    refused("--exp-python-factory", "an engine in Python is a worker of its own (dynamo.runtime)", switch=True),
    refused("--dump-config-to", "`--help` shows every value and its variable", env="DYN_DUMP_CONFIG_TO"),
)  # fmt: skip

FORMER: Final[tuple[LegacyFlag, ...]] = (*PLANES, *ROUTER, *_COUNTED, *_TALKING, *_MODELS)
GROUPS: Final = {
    "Listening": ("http_", "cors_", "body_limit", "body_budget", "tls_", "workers", "system_port", "public_",
                  "api_keys", "kserve_", "grpc_"),
    "Models and their workers": ("namespace", "discovery_", "worker_wait", "migration_", "tokenizer", "strict_"),
    "Routing": ("router_mode", "router_prefill", "router_kv", "router_decode", "router_track", "router_ttl",
                "router_temp", "use_kv", "router_replica", "router_session", "router_conditional", "max_local"),
    "Overload": ("active_", "router_queue", "max_", "stored_", "disable_admin", "open_admin"),
    "Time limits": ("header_", "body_timeout", "body_min_rate", "keep_alive", "shutdown_delay", "graceful_",
                    "write_timeout", "request_timeout", "first_token", "backend_stream"),
}  # fmt: skip
