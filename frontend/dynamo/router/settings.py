"""The router's settings: the flags and variables of NVIDIA Dynamo 1.6.1, with older versions' names beside them."""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.llm.kv.index import SECONDS
from dynamo.llm.kv_router.config import KvRouterConfig
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath, check_name
from dynamo.runtime.process.settings import setting

COMPONENT = "router"


@dataclass(frozen=True)
class RouterSettings:
    """What a router process can be told."""

    endpoint: str = setting(
        "", "Endpoint of the workers to route to, namespace.component.endpoint.", env="DYN_ROUTER_ENDPOINT"
    )
    router_block_size: int = setting(
        128, "Tokens in one of the workers' KV blocks.", env="DYN_ROUTER_BLOCK_SIZE", flags=["--block-size"]
    )
    namespace: str = setting(
        "", "Dynamo namespace that the router serves in; empty: the workers' own.", env="DYN_NAMESPACE"
    )
    router_kv_overlap_score_credit: float = setting(
        1.0, "What a cached block of a prompt is worth, in blocks.", env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT"
    )
    router_kv_overlap_score_credit_decay: float = setting(
        0.0, "How fast that fades on workers with more to prefill.", env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY"
    )
    router_prefill_load_scale: float = setting(
        1.0, "Cost of a block to prefill, against one to decode over.", env="DYN_ROUTER_PREFILL_LOAD_SCALE"
    )
    router_decode_active_request_weight: float = setting(
        0.0, "Cost of each running request, in blocks.", env="DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT"
    )
    router_kv_overlap_score_weight: float | None = setting(
        None, "Older name of --router-prefill-load-scale; 0 ignores caches.", env="DYN_ROUTER_OVERLAP_SCORE_WEIGHT",
        flags=["--kv-overlap-score-weight", "--overlap-score-weight"], hidden=True,
    )  # fmt: skip
    router_temperature: float = setting(0.0, "Randomness of the choice.", env="DYN_ROUTER_TEMPERATURE")
    router_kv_events: bool = setting(
        True, "Follow the workers' KV events; else what they cache is predicted.", env="DYN_ROUTER_USE_KV_EVENTS",
        flags=["--kv-events/--no-kv-events", "--use-kv-events/--no-use-kv-events"],
    )  # fmt: skip
    router_replica_sync: bool = setting(
        True, "Tell other routers and frontends what was sent, and count theirs.", env="DYN_ROUTER_REPLICA_SYNC"
    )
    router_track_active_blocks: bool = setting(
        True, "Count the blocks of running requests.", env="DYN_ROUTER_TRACK_ACTIVE_BLOCKS",
        flags=["--track-active-blocks/--no-track-active-blocks"],
    )  # fmt: skip
    router_assume_kv_reuse: bool = setting(
        True, "Count blocks that running requests share once.", env="DYN_ROUTER_ASSUME_KV_REUSE"
    )
    router_track_prefill_tokens: bool = setting(
        True, "Count the tokens that are still to be prefilled.", env="DYN_ROUTER_TRACK_PREFILL_TOKENS"
    )
    router_ttl_secs: float = setting(
        SECONDS, "How long a predicted block counts as cached.", env="DYN_ROUTER_TTL_SECS", flags=["--router-ttl"]
    )
    system_host: str = setting("0.0.0.0", "Address of /live, /health and /metrics.", env="DYN_SYSTEM_HOST")
    system_port: int = setting(-1, "Their port: 0 picks a free one, -1 turns them off.", env="DYN_SYSTEM_PORT")
    discovery_backend: str = setting(
        "etcd", "Where instances are found.", env="DYN_DISCOVERY_BACKEND", choices=("etcd", "mem")
    )
    verbose: int = 0

    def workers(self) -> EndpointPath:
        """Return the endpoint to route to; `InvalidArgument` where it is none."""
        if not self.endpoint:
            raise InvalidArgument(
                "--endpoint (or DYN_ROUTER_ENDPOINT) must name the workers: namespace.component.endpoint"
            )
        return EndpointPath.parse(self.endpoint)

    def served(self, endpoint: str) -> EndpointPath:
        """One of the router's own endpoints."""
        namespace = check_name(self.namespace, "namespace") if self.namespace else self.workers().namespace
        return EndpointPath(namespace, COMPONENT, endpoint)

    def config(self) -> KvRouterConfig:
        """Return how to choose; `InvalidArgument` for values that can't be."""
        try:
            return KvRouterConfig(
                overlap_score_weight=self.router_kv_overlap_score_weight,
                overlap_score_credit=self.router_kv_overlap_score_credit,
                overlap_score_credit_decay=self.router_kv_overlap_score_credit_decay,
                prefill_load_scale=self.router_prefill_load_scale,
                decode_active_request_weight=self.router_decode_active_request_weight,
                router_temperature=self.router_temperature,
                use_kv_events=self.router_kv_events,
                router_replica_sync=self.router_replica_sync,
                router_track_active_blocks=self.router_track_active_blocks,
                router_assume_kv_reuse=self.router_assume_kv_reuse,
                router_track_prefill_tokens=self.router_track_prefill_tokens,
                router_ttl_secs=self.router_ttl_secs,
            )
        except ValueError as error:
            raise InvalidArgument(str(error)) from error

    def check(self) -> None:
        """Raise `InvalidArgument` for the first setting that can't be meant."""
        self.served("generate")
        self.config()
        if self.router_block_size < 1:
            raise InvalidArgument(f"--router-block-size must be at least 1, not {self.router_block_size}")
        if not -1 <= self.system_port <= 65535:
            raise InvalidArgument(f"--system-port must be from -1 to 65535, got {self.system_port}")
