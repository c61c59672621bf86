"""NVIDIA Dynamo's flags of KV-aware routing that mean nothing here, for the frontend and `python -m dynamo.router`."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.process.legacy_flags import LegacyFlag, needless, refused, renamed

ROUTER: Final[tuple[LegacyFlag, ...]] = (
    renamed("--load-aware", "--router-kv-overlap-score-credit", "0", "--no-use-kv-events", switch=True,
            env="DYN_ROUTER_LOAD_AWARE"),
    needless("--no-load-aware", "it is off", switch=True),
    needless("--router-snapshot-threshold", "a router asks its workers for snapshots when it joins"),
    needless("--router-reset-states --no-router-reset-states", "a router's state is its workers', asked for when it "
             "joins", switch=True),
    needless("--router-max-tree-size --router-prune-target-ratio", "the index is bounded by what its workers cache",
             env="DYN_ROUTER_MAX_TREE_SIZE, DYN_ROUTER_PRUNE_TARGET_RATIO"),
    needless("--router-event-threads", "events are applied by the loop", env="DYN_ROUTER_EVENT_THREADS"),
    needless("--admission-control", "each threshold opts in by itself (--active-decode-blocks-threshold ...)",
             plain=["none"], env="DYN_ADMISSION_CONTROL"),
    needless("--enforce-disagg --no-enforce-disagg", "NVIDIA Dynamo ignores it, too", switch=True,
             env="DYN_ENFORCE_DISAGG"),
    needless("--router-approximate-cache-policy", "predictions end after --router-ttl-secs", plain=["ttl"],
             env="DYN_ROUTER_APPROXIMATE_CACHE_POLICY"),
    refused("--router-predicted-ttl-secs", "predictions end after --router-ttl-secs",
            env="DYN_ROUTER_PREDICTED_TTL_SECS"),
    refused("--router-host-cache-hit-weight --router-disk-cache-hit-weight",
            "only blocks in the engine's own cache are counted", plain=["0.75", "0.25"],
            env="DYN_ROUTER_HOST_CACHE_HIT_WEIGHT, DYN_ROUTER_DISK_CACHE_HIT_WEIGHT"),
    refused("--router-prefill-load-model", "the load of a prompt is its tokens (--router-queue-threshold)",
            plain=["none"], env="DYN_ROUTER_PREFILL_LOAD_MODEL"),
    refused("--router-policy-config --router-prefill-policy --router-decode-policy",
            "give --router-mode and the --router-* flags",
            env="DYN_ROUTER_POLICY_CONFIG, DYN_ROUTER_PREFILL_POLICY, DYN_ROUTER_DECODE_POLICY"),
    refused("--shared-cache-type", "only the workers' own caches are counted", plain=["none"],
            env="DYN_SHARED_CACHE_TYPE"),
    refused("--shared-cache-multiplier", "only the workers' own caches are counted",
            env="DYN_SHARED_CACHE_MULTIPLIER"),
    refused("--router-tracking-hash", "blocks are named by public-xxh3-v1", plain=["public-xxh3-v1"],
            env="DYN_ROUTER_TRACKING_HASH"),
    refused("--router-tracking-key-file --router-tracking-key-id", "blocks are named by public-xxh3-v1",
            env="DYN_ROUTER_TRACKING_KEY_FILE, DYN_ROUTER_TRACKING_KEY_ID"),
    refused("--use-remote-indexer", "each frontend has its own index; `python -m dynamo.router` is one for others",
            switch=True, env="DYN_USE_REMOTE_INDEXER"),
    refused("--serve-indexer", "`python -m dynamo.router` answers get_overlap_scores", switch=True,
            env="DYN_SERVE_INDEXER"),
    needless("--no-use-remote-indexer --no-serve-indexer", "it is off", switch=True),
    refused("--enable-session-prefix-index", "--router-session-affinity-ttl-secs keeps sessions together", switch=True,
            env="DYN_ENABLE_SESSION_PREFIX_INDEX"),
    needless("--no-enable-session-prefix-index", "it is off", switch=True),
)  # fmt: skip
"""Common to the frontend and `python -m dynamo.router`."""
