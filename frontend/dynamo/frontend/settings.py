"""The frontend's settings: every flag, its variable and its default.

Made into a click command by `dynamo.runtime.settings.command`; the supervisor turns
a settings object back into an argv for its children, so nothing is spelled twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dynamo.frontend.admission import QUEUE_POLICIES
from dynamo.frontend.affinity import MODES as SESSION_MODES
from dynamo.frontend.defaults import RequestDefaults
from dynamo.frontend.disaggregation import Rules, rules
from dynamo.runtime.settings import setting

ROUTER_MODES: Final = ("round-robin", "random", "least-loaded", "power-of-two", "kv")
KV_MODE: Final = "kv"
OVERLAP_WEIGHT: Final = 2.0
"""What prefill weighs against decoding. The original's 1 gave later first tokens, and later next ones, in every trace
that was simulated (docs/design/kv.md, "The weight")."""
OVERLAP_CREDIT: Final = 1.1
"""A bit more than a block's computation: of two workers that would answer at the same time, the one that has it."""
_YEAR: Final = 31_536_000
_BOUNDS: Final = (
    "max_concurrent_requests", "max_requests_per_model", "max_requests_per_client", "max_connections",
)  # fmt: skip
_LIMITS: Final = (
    "header_timeout", "body_timeout", "keep_alive_timeout", "stall_seconds", "request_timeout_secs",
    "first_token_timeout_secs", "backend_stream_timeout_secs",
)  # fmt: skip
_WEIGHTS: Final = (
    "overlap_score_weight", "router_kv_overlap_score_credit", "router_kv_overlap_score_credit_decay",
    "router_decode_active_request_weight", "router_temperature",
)  # fmt: skip


@dataclass(frozen=True)
class FrontendSettings:
    """What a frontend process can be told."""

    http_host: str = setting("0.0.0.0", "Address to listen on.", env="DYN_HTTP_HOST")
    http_port: int = setting(8000, "Port to listen on; 0 picks a free one.", env="DYN_HTTP_PORT")
    tls_cert_path: str = setting(
        "", "Serve HTTPS with this certificate (PEM, with its chain).", env="DYN_TLS_CERT_PATH"
    )
    tls_key_path: str = setting("", "The certificate's key (PEM).", env="DYN_TLS_KEY_PATH")
    tls_client_ca_cert_path: str = setting(
        "", "Take only clients with a certificate of this authority (PEM).", env="DYN_TLS_CLIENT_CA_CERT_PATH"
    )
    kserve_grpc_server: bool = setting(
        False, "Serve KServe's protocol over gRPC on --http-port, and HTTP on --grpc-metrics-port.",
        env="DYN_KSERVE_GRPC_SERVER",
    )  # fmt: skip
    grpc_metrics_port: int = setting(8788, "Port of HTTP beside gRPC; 0 picks a free one.", env="DYN_GRPC_METRICS_PORT")
    namespace: str = setting("", "Dynamo namespace to serve; empty: all of them.", env="DYN_NAMESPACE")
    namespace_prefix: str = setting(
        "", "Serve the namespaces that begin so; it goes before --namespace.", env="DYN_NAMESPACE_PREFIX"
    )
    router_mode: str = setting(
        "round-robin", "How a worker is chosen for a request.", env="DYN_ROUTER_MODE", choices=ROUTER_MODES
    )
    migration_limit: int = setting(
        0, "How often a request whose worker was lost goes on elsewhere; a model's own limit goes before it.",
        env="DYN_MIGRATION_LIMIT",
    )  # fmt: skip
    migration_max_seq_len: int | None = setting(
        None, "Tokens of prompt and answer up to which they are kept for that.", env="DYN_MIGRATION_MAX_SEQ_LEN"
    )
    hold_seconds: float = setting(
        0.0, "How long a request waits for a first worker before it is answered 503.", env="DYN_HOLD_SECONDS"
    )
    workers: int = setting(1, "Frontend processes that share the port.", env="DYN_FRONTEND_WORKERS")
    cors_origin: list[str] = setting(  # noqa: RUF009 - makes a dataclass field
        [], "Origin that browsers may call from, or '*'; repeatable.", env="DYN_HTTP_CORS_ORIGINS"
    )
    body_limit_mb: float = setting(45.0, "Largest request body in MB.", env="DYN_HTTP_BODY_LIMIT_MB")
    system_port: int | None = setting(
        None,
        "Port for /health and the merged /metrics of all processes (only with --workers).",
        env="DYN_FRONTEND_SYSTEM_PORT",
    )
    tokenizer: str = setting(
        "auto", "Tokenizer library.", env="DYN_TOKENIZER", choices=("auto", "default", "fastokens")
    )
    strict_fields: bool = setting(
        False, "Refuse request fields that nothing knows, instead of ignoring them.", env="DYN_STRICT_FIELDS"
    )
    overlap_score_weight: float = setting(
        OVERLAP_WEIGHT, "Weight of prompt blocks that a worker would have to compute (kv router); 0 ignores caches.",
        env=(
            "DYN_ROUTER_OVERLAP_SCORE_WEIGHT", "DYN_ROUTER_PREFILL_LOAD_SCALE", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT",
            "DYN_OVERLAP_SCORE_WEIGHT",
        ),
        flags=("--router-prefill-load-scale", "--router-kv-overlap-score-weight", "--kv-overlap-score-weight"),
    )  # fmt: skip
    router_kv_overlap_score_credit: float = setting(
        OVERLAP_CREDIT, "What a cached block is worth, of its computation (kv router).",
        env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
    )  # fmt: skip
    router_kv_overlap_score_credit_decay: float = setting(
        0.0, "How fast that fades on workers with more to prefill than the least busy one (kv router).",
        env="DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
    )  # fmt: skip
    router_decode_active_request_weight: float = setting(
        0.0, "Cost of each request that runs on a worker, in blocks (kv router).",
        env="DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
    )  # fmt: skip
    router_track_output_blocks: bool = setting(
        False, "Count the blocks that answers fill, too (kv router).", env="DYN_ROUTER_TRACK_OUTPUT_BLOCKS"
    )
    router_ttl_secs: float = setting(
        120.0, "Seconds for which a prompt is taken to be cached where workers don't say (kv router).",
        env=("DYN_ROUTER_TTL_SECS", "DYN_ROUTER_TTL"), flags=("--router-ttl",),
    )  # fmt: skip
    router_temperature: float = setting(0.0, "Randomness of the choice (kv router).", env="DYN_ROUTER_TEMPERATURE")
    use_kv_events: bool = setting(
        True, "Follow the workers' KV events (kv router).", env=("DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"),
        flags=("--kv-events/--no-kv-events", "--router-kv-events/--no-router-kv-events"),
    )  # fmt: skip
    router_replica_sync: bool = setting(
        True, "Tell other frontends what was sent, and count what they send (kv router).", env="DYN_ROUTER_REPLICA_SYNC"
    )
    active_decode_blocks_threshold: float | None = setting(
        None, "Share of its KV blocks in use above which a worker is busy; 503 where all are.",
        env=("DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", "DYN_BUSY_THRESHOLD"), flags=("--busy-threshold",),
    )  # fmt: skip
    active_prefill_tokens_threshold: int | None = setting(
        None, "Prompt tokens without a first answer token above which a worker is busy.",
        env="DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
    )  # fmt: skip
    active_prefill_tokens_threshold_frac: float | None = setting(
        None, "The same, as a multiple of the worker's max_num_batched_tokens.",
        env="DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
    )  # fmt: skip
    router_queue_threshold: float | None = setting(
        None, "Requests wait while every worker has more prompt tokens to prefill than this multiple of its "
        "max_num_batched_tokens.", env="DYN_ROUTER_QUEUE_THRESHOLD",
    )  # fmt: skip
    router_queue_policy: str = setting(
        "fcfs", "Who of those that wait is next: first come, last come, or shortest prompt by priority.",
        env="DYN_ROUTER_QUEUE_POLICY", choices=QUEUE_POLICIES,
    )  # fmt: skip
    router_queue_limit: int = setting(
        1024, "Requests that may wait, per model; more are answered 503.", env="DYN_ROUTER_QUEUE_LIMIT"
    )
    router_queue_timeout_secs: float = setting(
        30.0, "Seconds that a request may wait; then it is answered 503.", env="DYN_ROUTER_QUEUE_TIMEOUT_SECS"
    )
    router_conditional_disagg: bool = setting(
        False, "Let decode workers compute prompts that they have mostly cached, or that prefill workers are too busy "
        "for (kv router with events).", env="DYN_ROUTER_CONDITIONAL_DISAGG",
    )  # fmt: skip
    router_conditional_disagg_config: str = setting(
        "", "Which prompts: a JSON object with policy (isl_bounding, prefill_load, isl_or_load), eff_isl_threshold, "
        "eff_isl_ratio_threshold, prefill_busy_threshold, decode_busy_threshold.",
        env="DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG",
    )  # fmt: skip
    max_local_prefill_length: int | None = setting(
        None, "Decode workers compute prompts of at most that many tokens (less those known to be cached), also where "
        "there are prefill workers.", env="DYN_MAX_LOCAL_PREFILL_LENGTH",
    )  # fmt: skip
    router_session_affinity_ttl_secs: int | None = setting(
        None, "Requests with the same session id go to one worker; seconds after which an idle session is forgotten.",
        env="DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
    )  # fmt: skip
    router_session_affinity_mode: str = setting(
        "hard", "A session whose worker is busy: hard, it goes back to it later; soft, it moves.",
        env="DYN_ROUTER_SESSION_AFFINITY_MODE", choices=SESSION_MODES,
    )  # fmt: skip
    router_session_affinity_limit: int = setting(
        100_000, "Sessions that are remembered; the oldest are forgotten.", env="DYN_ROUTER_SESSION_AFFINITY_LIMIT"
    )
    disable_admin_api: bool = setting(
        False, "Leave out /busy_threshold, which shows and changes thresholds.", env="DYN_DISABLE_FRONTEND_ADMIN_API"
    )
    open_admin_api: bool = setting(
        False, "Let any client change thresholds there, not only those of this machine.",
        env="DYN_OPEN_FRONTEND_ADMIN_API",
    )  # fmt: skip
    discovery_backend: str = setting(
        "etcd", "Where instances are found.", env="DYN_DISCOVERY_BACKEND", choices=("etcd", "mem")
    )
    header_timeout: float = setting(
        10.0, "Seconds a client may take to send its request's headers.", env="DYN_HTTP_HEADER_TIMEOUT_SECS"
    )
    body_timeout: float = setting(
        30.0, "Seconds between two pieces of a request's body.", env="DYN_HTTP_BODY_TIMEOUT_SECS"
    )
    keep_alive_timeout: float = setting(
        75.0, "Seconds an idle connection stays open.", env="DYN_HTTP_KEEP_ALIVE_TIMEOUT_SECS"
    )
    drain_seconds: float = setting(
        5.0,
        "Seconds to go on accepting after SIGTERM, until no proxy sends here any more; as long again after each "
        "request, up to three times in all.",
        env="DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
    )
    grace_seconds: float = setting(
        30.0, "Seconds that running requests get to end after that.", env="DYN_GRACE_SECONDS"
    )
    stall_seconds: float = setting(
        60.0, "Seconds after which a client that reads nothing, or doesn't even acknowledge, is cut off.",
        env="DYN_HTTP_STALL_TIMEOUT_SECS",
    )  # fmt: skip
    request_timeout_secs: float | None = setting(
        None, "Time limit of requests without x-request-timeout-ms; then 504.", env="DYN_HTTP_REQUEST_TIMEOUT_SECS"
    )
    first_token_timeout_secs: float | None = setting(
        None, "Seconds within which a worker must give a first token; then another one is tried, else 504. Unset: "
        "as --backend-stream-timeout-secs.", env="DYN_HTTP_FIRST_TOKEN_TIMEOUT_SECS",
    )  # fmt: skip
    backend_stream_timeout_secs: float | None = setting(
        None, "Seconds that a worker's stream may bring no token; then it counts as lost.",
        env="DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS",
    )  # fmt: skip
    max_concurrent_requests: int | None = setting(
        None, "Requests for models that a frontend process answers at once, each of n answers counted; more get 503.",
        env="DYN_HTTP_MAX_CONCURRENT_REQUESTS",
    )  # fmt: skip
    max_requests_per_model: int | None = setting(None, "The same, of one model.", env="DYN_HTTP_MAX_REQUESTS_PER_MODEL")
    max_requests_per_client: int | None = setting(
        None, "The same, of one caller (x-tenant-id, else its key, else its address); more get 429.",
        env="DYN_HTTP_MAX_REQUESTS_PER_CLIENT",
    )  # fmt: skip
    max_connections: int | None = setting(
        None, "Connections of a frontend process; more get 503. Unset: as many as it may have open files, "
        "less 256.", env="DYN_HTTP_MAX_CONNECTIONS",
    )  # fmt: skip
    verbose: int = 0
    endpoint: str = ""
    """The only one whose workers are asked, `NAMESPACE.COMPONENT.ENDPOINT` (`dynamo-run out=dyn://…`); empty: all."""
    has_siblings: bool = False
    """It is one of several processes that share the port; its supervisor says so."""
    request_defaults: RequestDefaults | None = None
    """For requests that leave them out (`dynamo-run --request-template`)."""

    @property
    def body_limit(self) -> int:
        return int(self.body_limit_mb * 1024 * 1024)

    @property
    def ports(self) -> int:
        """Of clients: HTTP's, and gRPC's where there is one."""
        return 2 if self.kserve_grpc_server else 1

    @property
    def web_port(self) -> tuple[int, str]:
        """The port of HTTP, and the flag that says it: beside gRPC it has another one, as in the original."""
        if self.kserve_grpc_server:
            return self.grpc_metrics_port, "--grpc-metrics-port"
        return self.http_port, "--http-port"


def to_argv(settings: FrontendSettings, **changes: Any) -> list[str]:
    """The flags that give `settings` (with `changes`) back when they are parsed."""
    changed = dataclasses.replace(settings, **changes)
    told = [field.name for field in dataclasses.fields(changed) if "help" in field.metadata]
    return [*flags_of({name: getattr(changed, name) for name in told}), *["-v"] * changed.verbose]


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """The flags that say these fields."""
    return [part for name, value in values.items() for part in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    flag = _spelled(name)
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [part for item in value for part in (flag, str(item))]
    return [f"{flag}={value}"]


def problem(settings: FrontendSettings) -> str | None:
    """Why these settings can't be served, in one sentence; None where they can."""
    problems = (
        _port_problem,
        _tls_problem,
        _cost_problem,
        _overload_problem,
        _bounds_problem,
        _session_problem,
        _disagg_problem,
    )
    for reason in (check(settings) for check in problems):
        if reason is not None:
            return reason
    if settings.workers < 1:
        return "--workers must be at least 1"
    if settings.migration_limit < 0:
        return "--migration-limit must be 0 or more"
    if settings.migration_max_seq_len is not None and settings.migration_max_seq_len < 1:
        return "--migration-max-seq-len must be at least 1"
    if settings.hold_seconds < 0:
        return "--hold-seconds must be 0 or more"
    if settings.body_limit_mb <= 0:
        return "--body-limit-mb must be more than 0"
    return None


def _port_problem(settings: FrontendSettings) -> str | None:
    for name in ("http_port", "grpc_metrics_port"):
        if not 0 <= getattr(settings, name) <= 65535:
            return f"{_spelled(name)} must be between 0 and 65535"
    if not settings.kserve_grpc_server:
        return None
    if settings.http_port == settings.grpc_metrics_port != 0:
        return f"--grpc-metrics-port {settings.grpc_metrics_port} is gRPC's own port: give HTTP another one"
    if settings.workers > 1:
        return "--kserve-grpc-server is served by one process: leave out --workers, or run several frontends"
    return None


def _tls_problem(settings: FrontendSettings) -> str | None:
    if bool(settings.tls_cert_path) != bool(settings.tls_key_path):
        return "--tls-cert-path and --tls-key-path belong together"
    if settings.tls_client_ca_cert_path and not settings.tls_cert_path:
        return "--tls-client-ca-cert-path needs --tls-cert-path and --tls-key-path"
    return None


def _cost_problem(settings: FrontendSettings) -> str | None:
    for name in _WEIGHTS:
        if not 0 <= getattr(settings, name) < float("inf"):
            return f"{_spelled(name)} must be 0 or more"
    return None if 0 < settings.router_ttl_secs < float("inf") else "--router-ttl-secs must be more than 0"


def _overload_problem(settings: FrontendSettings) -> str | None:
    if not 0 <= (settings.active_decode_blocks_threshold or 0.0) <= 1:
        return "--active-decode-blocks-threshold is a share: it must be between 0 and 1"
    for name in ("active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac", "router_queue_threshold"):
        value = getattr(settings, name) or 0
        if not 0 <= value < float("inf"):
            return f"{_spelled(name)} must be 0 or more"
    if settings.router_queue_limit < 1:
        return "--router-queue-limit must be at least 1"
    if not 0 < settings.router_queue_timeout_secs < float("inf"):
        return "--router-queue-timeout-secs must be more than 0"
    return None


def _bounds_problem(settings: FrontendSettings) -> str | None:
    for name in _BOUNDS:
        value = getattr(settings, name)
        if value is not None and value < 1:
            return f"{_spelled(name)} must be at least 1"
    for name in _LIMITS:
        value = getattr(settings, name)
        if value is not None and not 0 < value < float("inf"):
            return f"{_spelled(name)} must be more than 0"
    return None


def _session_problem(settings: FrontendSettings) -> str | None:
    ttl = settings.router_session_affinity_ttl_secs
    if ttl is not None and not 1 <= ttl <= _YEAR:
        return f"--router-session-affinity-ttl-secs must be between 1 and {_YEAR}"
    if settings.router_session_affinity_limit < 1:
        return "--router-session-affinity-limit must be at least 1"
    return None


def watched(settings: FrontendSettings) -> str | None:
    """The only namespace to look at; None: all of them."""
    return None if settings.namespace_prefix else settings.namespace or None


def disagg_rules(settings: FrontendSettings) -> Rules:
    """Which prompts decode workers compute although there are prefill workers; `ValueError`: it can't be meant."""
    return rules(
        settings.router_conditional_disagg, settings.router_conditional_disagg_config,
        settings.max_local_prefill_length, settings.router_queue_threshold,
    )  # fmt: skip


def _disagg_problem(settings: FrontendSettings) -> str | None:
    try:
        disagg_rules(settings)
    except ValueError as error:
        return str(error)
    if settings.router_conditional_disagg and not (settings.router_mode == KV_MODE and settings.use_kv_events):
        return (
            "--router-conditional-disagg looks at what decode workers have cached: it needs --router-mode kv with "
            "KV events"
        )
    return None


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")
