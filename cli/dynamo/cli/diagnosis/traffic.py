"""Why requests of a pipeline fail, are rejected or are slow: rules over what its frontend has counted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dynamo.cli.diagnosis.findings import Finding, Weight

LEAST_SHARE: Final = 0.05
"""Of all requests; what is rarer is left to the logs."""
SLOW_FIRST_TOKEN: Final = 5.0
SLOW_TOKENS: Final = 0.5
SLOW_QUEUE: Final = 1.0


@dataclass(frozen=True)
class TrafficFacts:
    """What a frontend has counted since it started."""

    pipeline: str
    where: str = ""
    """Flags that commands need to reach it: `-n NAMESPACE` in a cluster."""
    requests: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    """By `error_type`."""
    rejections: Mapping[str, int] = field(default_factory=dict)
    """By the error's code."""
    timeouts: Mapping[str, int] = field(default_factory=dict)
    broken_off: int = 0
    first_token_seconds: float | None = None
    """Means, None where there was none."""
    token_seconds: float | None = None
    queue_seconds: float | None = None
    waiting: int = 0
    """Requests that wait for a worker now."""
    unserved: tuple[str, ...] = ()
    """Models without a worker."""


_BY_LIMIT: Final = {
    "full": "raise the engine's own limit (max_num_seqs), or add workers",
    "model_full": "raise --max-requests-per-model, or add workers",
    "frontend_full": "add frontends (spec.frontend.workers), or raise --max-concurrent-requests",
    "connections": "add frontends (spec.frontend.workers), or raise --max-connections",
    "rate_limit_exceeded": "raise --max-requests-per-client, or let the client send fewer at once",
}
_MORE: Final = "add workers: spec.replicas"
_NO_WORKER: Final = ("no_instances", "model_loading", "model_failed", "worker_lost")
_FAULTS: Final = {
    "internal": ("engine-raises", "an engine fails", "dynamo logs {name}{where} --tail 50"),
    "unavailable": ("worker-lost", "their worker was away", "dynamo doctor {name}{where}; dynamo logs {name}{where}"),
    "response_timeout": (
        "too-slow", "a time limit ended them", "add workers: spec.replicas; or raise spec.frontend's time limits"
    ),
    "takes_workers_down": (
        "kills-workers", "two workers died with the same request", "dynamo logs {name}{where}; change that request"
    ),
    "not_found": (
        "wrong-model", "clients ask for a model that isn't served", "curl URL/v1/models lists the names to ask for"
    ),
    "validation": (
        "bad-requests", "clients send what can't be served: too long for the context, or wrong fields",
        "shorten prompts and max_tokens, or raise spec.model.contextLength; the answer's message names the field",
    ),
}  # fmt: skip
"""Code, cause and command by `error_type`."""


def findings(facts: TrafficFacts) -> Iterator[Finding]:
    """Yield why requests fail, then why they are slow; nothing of a pipeline that nobody asks."""
    yield from _unserved(facts)
    yield from _failures(facts)
    yield from _rejections(facts)
    yield from _slowness(facts)


def _unserved(facts: TrafficFacts) -> Iterator[Finding]:
    for model in facts.unserved:
        yield Finding(
            "no-worker", f"no worker of {facts.pipeline} serves {model}", "clients get 503 no_instances",
            f"dynamo logs {facts.pipeline}{facts.where} --tail 50",
        )  # fmt: skip


def _failures(facts: TrafficFacts) -> Iterator[Finding]:
    for kind, count in sorted(facts.failures.items(), key=lambda pair: -pair[1]):
        if kind not in _FAULTS or count < LEAST_SHARE * facts.requests:
            continue
        code, cause, mend = _FAULTS[kind]
        limits = "".join(f", {limit} {number} times" for limit, number in facts.timeouts.items() if code == "too-slow")
        yield Finding(
            code, f"{count} of {facts.requests} requests of {facts.pipeline} failed", f"{cause}{limits}",
            mend.format(name=facts.pipeline, where=facts.where),
            Weight.WARNING if code in ("wrong-model", "bad-requests") else Weight.ERROR,
        )  # fmt: skip
    if facts.broken_off:
        yield Finding(
            "broke-off", f"{facts.broken_off} streams of {facts.pipeline} broke off", "their workers died, one by one",
            f"dynamo logs {facts.pipeline}{facts.where}; spec.frontend.migrationLimit lets a stream move more often",
        )  # fmt: skip


def _rejections(facts: TrafficFacts) -> Iterator[Finding]:
    for reason, count in sorted(facts.rejections.items(), key=lambda pair: -pair[1]):
        if reason not in _NO_WORKER and count >= LEAST_SHARE * facts.requests:
            yield Finding(
                "rejected", f"{count} requests of {facts.pipeline} were rejected: {reason}",
                "more came at once than there is room for", _BY_LIMIT.get(reason, _MORE), Weight.WARNING,
            )  # fmt: skip


def _slowness(facts: TrafficFacts) -> Iterator[Finding]:
    if facts.waiting or (facts.queue_seconds or 0) > SLOW_QUEUE:
        waits = f"they waited {facts.queue_seconds or 0:.1f} s on average; {facts.waiting} wait now"
        yield Finding(
            "slow-queue", f"requests of {facts.pipeline} wait for a worker with room", waits, _MORE, Weight.WARNING
        )
    elif (facts.first_token_seconds or 0) > SLOW_FIRST_TOKEN:
        yield Finding(
            "slow-first-token", f"answers of {facts.pipeline} begin late",
            f"{facts.first_token_seconds:.1f} s on average, and none waits here: the engines compute long prompts, "
            "or have more requests than they run at once",
            f"{_MORE}, or separate prefill and decode (dynamo example disagg)", Weight.WARNING,
        )  # fmt: skip
    if (facts.token_seconds or 0) > SLOW_TOKENS:
        yield Finding(
            "slow-tokens", f"text of {facts.pipeline} comes slowly",
            f"{facts.token_seconds:.2f} s between two tokens on average: the engine is slow, or overfull",
            f"lower the engine's max_num_seqs, {_MORE}, or use a smaller model", Weight.WARNING,
        )  # fmt: skip
