"""Limits that a frontend can be told: requests side by side, tokens in time, and migrations. Groups of its settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dynamo.llm.model_card import ModelCard
from dynamo.runtime.process.settings import out_of_range, setting


@dataclass(frozen=True)
class ConcurrencyLimits:
    """Requests side by side; None: as many as come."""

    requests: int | None = setting(
        8192, "Requests in flight per frontend process, each of n choices counted; further ones get 503.",
        env="DYN_HTTP_MAX_CONCURRENT_REQUESTS", name="max_concurrent_requests",
    )  # fmt: skip
    per_model: int | None = setting(
        None,
        "Requests in flight per model; further ones get 503 model_full.",
        env="DYN_HTTP_MAX_REQUESTS_PER_MODEL",
        name="max_requests_per_model",
    )
    per_client: int | None = setting(
        None, "Requests in flight per caller (x-tenant-id, else its API key, else its address); further ones get 429.",
        env="DYN_HTTP_MAX_REQUESTS_PER_CLIENT", name="max_requests_per_client",
    )  # fmt: skip

    @property
    def any(self) -> bool:
        """Tell whether one of them is set."""
        return any(limit is not None for limit in (self.requests, self.per_model, self.per_client))

    def problem(self) -> str | None:
        """Return why these limits can't hold, in one sentence; None where they can."""
        return out_of_range(self, "requests", "per_model", "per_client", least=1)


@dataclass(frozen=True)
class StoredResponsesSettings:
    """What POST /v1/responses may keep."""

    ttl: float = setting(
        3600.0, "Seconds that a response of /v1/responses is kept after its last use, in a frontend's memory; 0: none "
        "is kept.", env="DYN_STORED_RESPONSES_TTL_SECS", name="stored_responses_ttl_secs",
    )  # fmt: skip
    max_count: int = setting(
        4096, "Responses that are kept, by all processes of a frontend.", env="DYN_STORED_RESPONSES_MAX_COUNT",
        name="stored_responses_max_count",
    )  # fmt: skip
    max_mb: float = setting(
        64.0, "MB of responses and their inputs that are kept, by all processes of a frontend.",
        env="DYN_STORED_RESPONSES_MAX_MB", name="stored_responses_max_mb",
    )  # fmt: skip

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * 1024 * 1024)

    def problem(self) -> str | None:
        """Return why these limits can't hold, in one sentence; None where they can."""
        return out_of_range(self, "ttl", "max_mb") or out_of_range(self, "max_count", least=1)


@dataclass(frozen=True)
class TokenLimits:
    """Seconds that a worker may say nothing; None: as long as it likes."""

    first: float | None = setting(
        None, "Seconds within which a worker must send a first token; else another worker is tried, then 504. "
        "Unset: as --backend-stream-timeout-secs.", env="DYN_HTTP_FIRST_TOKEN_TIMEOUT_SECS",
        name="first_token_timeout_secs",
    )  # fmt: skip
    """From the moment that an attempt is sent to it; where unset, `between` holds from there."""
    between: float | None = setting(
        None, "Seconds without a token after which a worker's stream counts as lost.",
        env="DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", name="backend_stream_timeout_secs",
    )  # fmt: skip

    def of(self, begun: bool) -> float:
        """Return the limit of an attempt that has, or hasn't, a token already; infinite where there is none."""
        limit = self.between if begun or self.first is None else self.first
        return float("inf") if limit is None else limit

    def problem(self) -> str | None:
        """Return why these limits can't hold, in one sentence; None where they can."""
        return out_of_range(self, "first", "between", above=True)


@dataclass(frozen=True)
class MigrationSettings:
    """Which requests go on elsewhere when their worker is lost."""

    limit: int = setting(
        0, "Times a request may move to another worker after its worker fails; 0 disables migration. A limit set on "
        "the model's worker takes precedence.",
        env="DYN_MIGRATION_LIMIT", name="migration_limit",
    )  # fmt: skip
    max_seq_len: int | None = setting(
        None, "Don't migrate requests longer than this many tokens (prompt plus output). Unset: no limit.",
        env="DYN_MIGRATION_MAX_SEQ_LEN",
        name="migration_max_seq_len",
    )  # fmt: skip

    def of_model(self, card: ModelCard) -> MigrationSettings:
        """Return what holds for a model: what its card says goes before what this frontend says."""
        return self if card.migration_limit is None else replace(self, limit=card.migration_limit)

    def problem(self) -> str | None:
        """Return why these settings can't be meant, in one sentence; None where they can."""
        return out_of_range(self, "limit") or out_of_range(self, "max_seq_len", least=1)
