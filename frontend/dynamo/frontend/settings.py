"""The frontend's settings: every flag, its variable and its default.

Made into a click command by `dynamo.runtime.process.settings.command`; the supervisor turns
a settings object back into an argv for its children, so nothing is spelled twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dynamo.frontend.http.settings import AccessSettings, ClientTimeouts, TlsSettings
from dynamo.frontend.images.settings import ImageSettings
from dynamo.frontend.limits.settings import ConcurrencyLimits, MigrationSettings, StoredResponsesSettings, TokenLimits
from dynamo.frontend.openai.request_defaults import RequestDefaults
from dynamo.frontend.request_log.log import MOST_REQUESTS
from dynamo.frontend.routing.admission_policy import QueueOptions, Thresholds
from dynamo.frontend.routing.disaggregation import DisaggSettings, Rules, rules
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.session_affinity import SessionSettings
from dynamo.runtime.load_balancing import ROUTER_MODES, RouterMode
from dynamo.runtime.process.program_options import ProgramOptions
from dynamo.runtime.process.settings import changed, flag, group, like, out_of_range, setting, values_in


@dataclass(frozen=True)
class FrontendSettings:
    """Settings of a frontend process."""

    system_port: int | None = setting(
        None, "Port of its own for /live, /health and /metrics (with --workers of all processes); 0 picks a free one.",
        env="DYN_FRONTEND_SYSTEM_PORT",
    )  # fmt: skip
    timeouts: ClientTimeouts = group(ClientTimeouts)
    access: AccessSettings = group(AccessSettings)
    http_host: str = setting("0.0.0.0", "Address to listen on.", env="DYN_HTTP_HOST")
    http_port: int = setting(8000, "Port to listen on; 0 picks a free one.", env="DYN_HTTP_PORT")
    tls: TlsSettings = group(TlsSettings)
    kserve_grpc_server: bool = setting(
        False, "Serve KServe's protocol over gRPC on --http-port, and HTTP on --grpc-metrics-port.",
        env="DYN_KSERVE_GRPC_SERVER",
    )  # fmt: skip
    grpc_metrics_port: int = setting(8788, "Port of HTTP beside gRPC; 0 picks a free one.", env="DYN_GRPC_METRICS_PORT")
    namespace: str = like(ProgramOptions, "namespace", help="Dynamo namespace to serve; empty: all of them.")
    namespace_prefix: str = setting(
        "", "Serve all namespaces with this prefix; takes precedence over --namespace.", env="DYN_NAMESPACE_PREFIX"
    )
    router_mode: str = setting(
        "round-robin", "How a worker is chosen for a request.", env="DYN_ROUTER_MODE", choices=ROUTER_MODES
    )
    migration: MigrationSettings = group(MigrationSettings)
    worker_wait_timeout_secs: float = setting(
        0.0, "Seconds that a request waits when its model has no worker; then it gets 503. 0 rejects at once.",
        env="DYN_WORKER_WAIT_TIMEOUT_SECS",
    )  # fmt: skip
    workers: int = setting(1, "Frontend processes that share the port.", env="DYN_FRONTEND_WORKERS")
    cors_origin: list[str] = setting(  # noqa: RUF009 - makes a dataclass field
        [],
        "Origin that browsers may call from, or '*', or 'none'; repeatable. Unset: pages of this machine "
        "(localhost, any port).",
        env="DYN_HTTP_CORS_ORIGINS",
    )
    body_limit_mb: float = setting(4.0, "Largest request body in MB.", env="DYN_HTTP_BODY_LIMIT_MB")
    body_budget_mb: float | None = setting(
        None, "MB of request bodies that are read at once; more wait, then get 503. Unset: 16 times --body-limit-mb, "
        "at least 64.", env="DYN_HTTP_BODY_BUDGET_MB",
    )  # fmt: skip
    tokenizer: str = setting(
        "auto", "Tokenizer library; auto: fastokens once there is much to encode, where it gives the same tokens.",
        env="DYN_TOKENIZER", choices=("auto", "default", "fastokens"),
    )  # fmt: skip
    reasoning_field_name: str = setting(
        "reasoning_content", "Field of chat answers that has the model's reasoning; vLLM's clients read `reasoning`.",
        env="DYN_REASONING_FIELD_NAME", choices=("reasoning_content", "reasoning"),
    )  # fmt: skip
    strict_fields: bool = setting(
        False, "Reject requests with unknown fields instead of ignoring these fields.", env="DYN_STRICT_FIELDS"
    )
    kv: KvOptions = group(KvOptions)
    thresholds: Thresholds = group(Thresholds)
    queue: QueueOptions = group(QueueOptions)
    disagg: DisaggSettings = group(DisaggSettings)
    sessions: SessionSettings = group(SessionSettings)
    discovery_backend: str = like(ProgramOptions, "discovery_backend")
    direct_frames: str = like(ProgramOptions, "direct_frames")
    shutdown_delay_secs: float = setting(
        5.0,
        "Seconds to go on accepting after SIGTERM, until no proxy sends here any more; as long again after each "
        "request, up to three times in all.",
        env="DYN_HTTP_SHUTDOWN_DELAY_SECS",
    )
    graceful_shutdown_timeout_secs: float = like(
        ProgramOptions, "graceful_shutdown_timeout_secs", help="Seconds that running requests get to end after that.",
        env=("DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"),
    )  # fmt: skip
    write_timeout_secs: float = setting(
        60.0, "Seconds after which a client that reads nothing, or doesn't even acknowledge, is cut off.",
        env="DYN_HTTP_WRITE_TIMEOUT_SECS",
    )  # fmt: skip
    request_timeout_secs: float | None = setting(
        None, "Time limit of requests without x-request-timeout-ms; then 504.", env="DYN_HTTP_REQUEST_TIMEOUT_SECS"
    )
    token_limits: TokenLimits = group(TokenLimits)
    concurrency: ConcurrencyLimits = group(ConcurrencyLimits)
    stored: StoredResponsesSettings = group(StoredResponsesSettings)
    images: ImageSettings = group(ImageSettings)
    max_connections: int | None = setting(
        None, "Connections per frontend process; further ones get 503. Unset: the limit of open files, "
        "less 448.", env="DYN_HTTP_MAX_CONNECTIONS",
    )  # fmt: skip
    request_log_size: int = setting(
        4096, "Requests, of those that ended in the last ten minutes, that `dynamo explain` finds; 0: none.",
        env="DYN_REQUEST_LOG_SIZE",
    )  # fmt: skip
    verbose: int = 0
    endpoint: str = ""
    """The only one whose workers are asked, `NAMESPACE.COMPONENT.ENDPOINT` (`dynamo-run out=dyn://…`); empty: all."""
    has_siblings: bool = False
    """It is one of several processes that share the port; its supervisor says so."""
    clipped_tokens: int = 0
    """Up to so many tokens may be asked for where there is room for fewer, and the answer is shorter (`dynamo-run`);
    else that is refused."""
    request_defaults: RequestDefaults | None = None
    """For requests that leave them out (`dynamo-run --request-template`)."""
    model_aliases: Mapping[str, str] | None = None
    """Names beside a model's own, where nobody serves a model of that name (`dynamo-run` without a model)."""

    @cached_property
    def body_limit(self) -> int:
        """Return the bytes of the largest body; asked for each request."""
        return int(self.body_limit_mb * 1024 * 1024)

    @property
    def body_budget(self) -> int:
        """Return the bytes of bodies that are read at once."""
        mb = self.body_budget_mb
        return max(16 * self.body_limit, 64 << 20) if mb is None else int(mb * 1024 * 1024)

    @property
    def ports(self) -> int:
        """Count the ports of clients: HTTP's, and gRPC's where there is one."""
        return 2 if self.kserve_grpc_server else 1

    @property
    def web_port(self) -> tuple[int, str]:
        """Return the port of HTTP, and the flag that says it: beside gRPC it has another one, as in NVIDIA Dynamo."""
        if self.kserve_grpc_server:
            return self.grpc_metrics_port, "--grpc-metrics-port"
        return self.http_port, "--http-port"


def to_argv(settings: FrontendSettings, **changes: Any) -> list[str]:
    """Return the flags that give `settings` (with `changes`) back when they are parsed."""
    wanted = changed(settings, **changes)
    return [*flags_of(values_in(wanted)), *["-v"] * wanted.verbose]


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Return the flags that say these options."""
    return [part for name, value in values.items() for part in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    spelled = flag(name)
    if value is None:
        return []
    if isinstance(value, bool):
        return [spelled if value else spelled.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [part for item in value for part in (spelled, str(item))]
    return [f"{spelled}={value}"]


def problem(settings: FrontendSettings) -> str | None:
    """Return why these settings can't be served, in one sentence; None where they can."""
    return next((text for text in _problems(settings) if text is not None), None)


def _problems(settings: FrontendSettings) -> Iterator[str | None]:
    yield _port_problem(settings)
    for concern in (
        settings.timeouts, settings.tls, settings.kv, settings.thresholds, settings.queue, settings.concurrency,
        settings.token_limits, settings.sessions, settings.migration, settings.stored,
        settings.images,
    ):  # fmt: skip
        yield concern.problem()
    yield _disagg_problem(settings)
    yield out_of_range(settings, "workers", "max_connections", least=1)
    yield out_of_range(settings, "worker_wait_timeout_secs")
    if not 0 <= settings.request_log_size <= MOST_REQUESTS:
        yield f"--request-log-size must be between 0 and {MOST_REQUESTS}"
    yield out_of_range(settings, "write_timeout_secs", "request_timeout_secs", "body_limit_mb", above=True)
    if settings.body_budget_mb is not None and not settings.body_limit_mb <= settings.body_budget_mb < float("inf"):
        yield "--body-budget-mb must be at least --body-limit-mb: a body that is larger would never be read"


def _port_problem(settings: FrontendSettings) -> str | None:
    for name in ("http_port", "grpc_metrics_port", "system_port"):
        if not 0 <= (getattr(settings, name) or 0) <= 65535:
            return f"{flag(name)} must be between 0 and 65535"
    if not settings.kserve_grpc_server:
        return None
    if settings.http_port == settings.grpc_metrics_port != 0:
        return f"--grpc-metrics-port {settings.grpc_metrics_port} is gRPC's own port: give HTTP another one"
    if settings.workers > 1:
        return "--kserve-grpc-server is served by one process: leave out --workers, or run several frontends"
    return None


def watched(settings: FrontendSettings) -> str | None:
    """Return the only namespace to look at; None: all of them."""
    return None if settings.namespace_prefix else settings.namespace or None


def disagg_rules(settings: FrontendSettings) -> Rules:
    """Return which prompts decode workers compute although there are prefill workers; raises `ValueError`."""
    return rules(settings.disagg, settings.queue.threshold)


def _disagg_problem(settings: FrontendSettings) -> str | None:
    try:
        disagg_rules(settings)
    except ValueError as error:
        return str(error)
    if settings.disagg.conditional and not (settings.router_mode == RouterMode.KV.value and settings.kv.follow_events):
        return (
            "--router-conditional-disagg looks at what decode workers have cached: it needs --router-mode kv with "
            "KV events"
        )
    return None
