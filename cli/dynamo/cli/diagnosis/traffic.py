"""Why requests of a pipeline fail or are rejected: rules over what its frontend has counted, and said last. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dynamo.cli.diagnosis import slowness
from dynamo.cli.diagnosis.findings import Finding, Weight
from dynamo.cli.diagnosis.slowness import RunningFact, WorkerFact

LEAST_EMPTY: Final = 2
"""Answers; one may have been broken off by its client."""
LEAST_SHARE: Final = 0.05
"""Of all requests; what is rarer is left to the logs."""


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
    answers: int = 0
    """To chats and completions, whatever became of them."""
    output_tokens: int = 0
    """Of all of them."""
    prompt_tokens: float | None = None
    """Mean of a prompt."""
    most_running: Mapping[str, int] = field(default_factory=dict)
    """Requests that an engine runs at once, by model."""
    file: str = "FILE"
    """The pipeline's own, where it is known."""
    workers: tuple[WorkerFact, ...] = ()
    running: tuple[RunningFact, ...] = ()
    engine_said: str = ""
    """What an engine failed with last."""
    refused: str = ""
    """What a client was told last that sent what can't be served."""

    @property
    def again(self) -> str:
        """Return what starts it with a corrected file."""
        return f"dynamo apply {self.file}" if self.where else f"dynamo down {self.pipeline}; dynamo up {self.file}"


_EXPORT: Final = "export {variable}=NUMBER, then {again} (in a cluster: spec.frontend.podTemplate)"
_BY_LIMIT: Final = {
    "full": "raise the engine's own limit, max-num-seqs in spec.components[].engineArgs, or spec.replicas",
    "model_full": _EXPORT.replace("{variable}", "DYN_HTTP_MAX_REQUESTS_PER_MODEL") + "; or raise spec.replicas",
    "frontend_full": "raise spec.frontend.workers; or "
    + _EXPORT.replace("{variable}", "DYN_HTTP_MAX_CONCURRENT_REQUESTS"),
    "connections": "raise spec.frontend.workers; or " + _EXPORT.replace("{variable}", "DYN_HTTP_MAX_CONNECTIONS"),
    "rate_limit_exceeded": "let the client send fewer at once; or "
    + _EXPORT.replace("{variable}", "DYN_HTTP_MAX_REQUESTS_PER_CLIENT"),
}
_MORE: Final = "raise spec.replicas in {file}, then {again}"
_NO_WORKER: Final = ("no_instances", "model_loading", "model_failed", "worker_lost")
_BY_TIMEOUT: Final = {
    "request": "DYN_HTTP_REQUEST_TIMEOUT_SECS (or the client's x-request-timeout-ms)",
    "first_token": "DYN_HTTP_FIRST_TOKEN_TIMEOUT_SECS",
    "inter_token": "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS",
    "worker_wait": "spec.frontend.workerWaitTimeoutSeconds",
}
_FAULTS: Final = {
    "internal": ("engine-raises", "an engine fails", "dynamo logs {name}{where} --tail 50"),
    "unavailable": ("worker-lost", "their worker was away", "dynamo logs {name}{where} --tail 50 says why it left"),
    "response_timeout": ("too-slow", "a time limit ended them", "raise spec.replicas in {file}, or {limit}"),
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
_TEMPLATE: Final = "chat template"
_PLACE: Final = re.compile(r"(?P<place>[\w.-]+\.py:\d+)")


def findings(facts: TrafficFacts) -> Iterator[Finding]:
    """Yield why requests fail, then why they are slow; nothing of a pipeline that nobody asks."""
    yield from _unserved(facts)
    yield from _two_models(facts)
    yield from slowness.stalled(facts)
    yield from _failures(facts)
    yield from _rejections(facts)
    yield from _empty(facts)
    yield from slowness.findings(facts)


def _unserved(facts: TrafficFacts) -> Iterator[Finding]:
    for model in facts.unserved:
        yield Finding(
            "no-worker", f"no worker of {facts.pipeline} serves {model}", "clients get 503 no_instances",
            f"dynamo logs {facts.pipeline}{facts.where} --tail 50",
        )  # fmt: skip


def _two_models(facts: TrafficFacts) -> Iterator[Finding]:
    """Say that one name is served by workers whose models differ: which one answers is chance."""
    cards: dict[str, dict[str, str]] = {}
    for worker in facts.workers:
        if worker.card and worker.role == "generate":
            cards.setdefault(worker.model, {}).setdefault(worker.card, worker.part)
    for model, parts in cards.items():
        if len(parts) > 1:
            yield Finding(
                "two-models", f"two models answer under the name {model}",
                f"{' and '.join(parts.values())} differ in tokenizer, template or limits, and requests go to either",
                f"give each a spec.model.name, or a spec.namespace, of its own in {facts.file}, then {facts.again}",
                Weight.WARNING,
            )  # fmt: skip


def _failures(facts: TrafficFacts) -> Iterator[Finding]:
    for kind, count in sorted(facts.failures.items(), key=lambda pair: -pair[1]):
        if kind in _FAULTS and count >= LEAST_SHARE * facts.requests:
            yield _failure(facts, kind, count)
    if facts.broken_off:
        yield Finding(
            "broke-off", f"{facts.broken_off} streams of {facts.pipeline} broke off", "their workers died, one by one",
            f"dynamo logs {facts.pipeline}{facts.where}; spec.frontend.migrationLimit lets a stream move more often",
        )  # fmt: skip


def _failure(facts: TrafficFacts, kind: str, count: int) -> Finding:
    code, cause, mend = _FAULTS[kind]
    if code == "too-slow":
        cause += "".join(f", {limit} {number} times" for limit, number in facts.timeouts.items())
    elif code == "engine-raises" and facts.engine_said:
        cause += f": {facts.engine_said}"
        if place := _PLACE.search(facts.engine_said):
            mend = f"correct {place['place']} (spec.components[].python.file), then {{again}}"
    elif code == "bad-requests" and _TEMPLATE in facts.refused:
        code, cause = "chat-template", facts.refused
        mend = "set spec.model.chatTemplate in {file} to a template that takes such messages, then {again}"
    elif code == "bad-requests" and facts.refused:
        cause = f"clients send what can't be served; the last one was told: {facts.refused}"
    hits = max(facts.timeouts, key=lambda limit: facts.timeouts[limit], default="request")
    return Finding(
        code, f"{count} of {facts.requests} requests of {facts.pipeline} failed", cause,
        mend.format(
            name=facts.pipeline, where=facts.where, file=facts.file, again=facts.again,
            limit=_BY_TIMEOUT.get(hits, _BY_TIMEOUT["request"]),
        ),
        Weight.WARNING if code in ("wrong-model", "bad-requests") else Weight.ERROR,
    )  # fmt: skip


def _empty(facts: TrafficFacts) -> Iterator[Finding]:
    """Say that answers come, and no token in any of them: an engine that ends without a word fails nothing."""
    if facts.output_tokens == 0 and facts.answers - sum(facts.failures.values()) >= LEAST_EMPTY:
        yield Finding(
            "empty-answers", f"all answers of {facts.pipeline} are empty", "its engine ends them without a token",
            "where it is a Python file, have it yield (spec.components[].python.file), "
            f"then {facts.again}; dynamo logs {facts.pipeline}{facts.where} --tail 50", Weight.WARNING,
        )  # fmt: skip


def _rejections(facts: TrafficFacts) -> Iterator[Finding]:
    for reason, count in sorted(facts.rejections.items(), key=lambda pair: -pair[1]):
        if reason not in _NO_WORKER and count >= LEAST_SHARE * facts.requests:
            yield Finding(
                "rejected", f"{count} requests of {facts.pipeline} were rejected: {reason}",
                "more came at once than there is room for",
                _BY_LIMIT.get(reason, _MORE).format(file=facts.file, again=facts.again), Weight.WARNING,
            )  # fmt: skip
