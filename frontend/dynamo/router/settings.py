"""The router's settings: the flags and variables of NVIDIA Dynamo 1.6.1, with older versions' names beside them."""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.llm.kv_router.config import KvRouterConfig
from dynamo.llm.kv_router.settings import KvRouterSettings
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath, check_name
from dynamo.runtime.process.program_options import ProgramOptions
from dynamo.runtime.process.settings import like, setting

COMPONENT = "router"


@dataclass(frozen=True)
class RouterSettings:
    """Settings of a router process."""

    endpoint: str = setting(
        "", "Endpoint of the workers to route to, namespace.component.endpoint.", env="DYN_ROUTER_ENDPOINT"
    )
    router_block_size: int = setting(
        128, "Tokens in a KV block of the workers.", env="DYN_ROUTER_BLOCK_SIZE", flags=["--block-size"]
    )
    namespace: str = like(
        ProgramOptions, "namespace", help="Dynamo namespace that the router serves in; empty: the workers' own."
    )
    router_kv_overlap_score_credit: float = like(
        KvRouterSettings, "router_kv_overlap_score_credit", default=1.0,
        help="Value of a cached block, relative to the cost of computing it.",
    )  # fmt: skip
    router_kv_overlap_score_credit_decay: float = like(
        KvRouterSettings, "router_kv_overlap_score_credit_decay",
        help="Reduces the cache credit of workers with a longer prefill backlog; 0 turns it off.",
    )  # fmt: skip
    router_prefill_load_scale: float = setting(
        1.0, "How strongly workers that cache the prompt are preferred over less loaded ones; 0 ignores caches.",
        env="DYN_ROUTER_PREFILL_LOAD_SCALE",
    )  # fmt: skip
    router_decode_active_request_weight: float = like(
        KvRouterSettings, "router_decode_active_request_weight",
        help="Cost of each request that runs on a worker, in blocks.",
    )  # fmt: skip
    router_kv_overlap_score_weight: float | None = setting(
        None, "Older name of --router-prefill-load-scale; 0 ignores caches.", env="DYN_ROUTER_OVERLAP_SCORE_WEIGHT",
        flags=["--kv-overlap-score-weight", "--overlap-score-weight"], hidden=True,
    )  # fmt: skip
    router_temperature: float = like(
        KvRouterSettings,
        "router_temperature",
        help="Softmax temperature of the choice; 0 always takes the cheapest worker.",
    )
    router_kv_events: bool = setting(
        True, "Track caches by the workers' KV events; else predict them.", env="DYN_ROUTER_USE_KV_EVENTS",
        flags=["--kv-events/--no-kv-events", "--use-kv-events/--no-use-kv-events"],
    )  # fmt: skip
    router_replica_sync: bool = like(
        KvRouterSettings, "router_replica_sync",
        help="Exchange routing decisions with other routers and frontends, so that each counts all requests.",
    )  # fmt: skip
    router_track_active_blocks: bool = setting(
        True, "Count the blocks of running requests.", env="DYN_ROUTER_TRACK_ACTIVE_BLOCKS",
        flags=["--track-active-blocks/--no-track-active-blocks"],
    )  # fmt: skip
    router_assume_kv_reuse: bool = setting(
        True, "Count KV blocks that running requests share only once.", env="DYN_ROUTER_ASSUME_KV_REUSE"
    )
    router_track_prefill_tokens: bool = setting(
        True, "Count prompt tokens that await prefill.", env="DYN_ROUTER_TRACK_PREFILL_TOKENS"
    )
    router_ttl_secs: float = like(
        KvRouterSettings, "router_ttl_secs",
        help="Seconds a prompt is assumed to stay cached on workers that send no KV events.",
        flags=["--router-ttl"], aliases=(),
    )  # fmt: skip
    system_host: str = like(
        ProgramOptions, "system_host", default="0.0.0.0", help="Address of /live, /health and /metrics."
    )
    system_port: int = like(ProgramOptions, "system_port")
    discovery_backend: str = like(ProgramOptions, "discovery_backend")
    verbose: int = 0

    def workers(self) -> EndpointPath:
        """Return the endpoint to route to; `InvalidArgument` where it is none."""
        if not self.endpoint:
            raise InvalidArgument(
                "--endpoint (or DYN_ROUTER_ENDPOINT) must name the workers: namespace.component.endpoint"
            )
        return EndpointPath.parse(self.endpoint)

    def served(self, endpoint: str) -> EndpointPath:
        """Return one of the router's own endpoints."""
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
