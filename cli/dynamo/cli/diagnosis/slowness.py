"""Why requests of a pipeline are slow, or never answered: by what its workers do and where requests are now. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.findings import Finding, Weight

if TYPE_CHECKING:
    from dynamo.cli.diagnosis.traffic import TrafficFacts

SLOW_FIRST_TOKEN: Final = 5.0
SLOW_TOKENS: Final = 0.5
SLOW_QUEUE: Final = 1.0
STALLED_SECONDS: Final = 10.0
"""Without a token, of a request that a worker has."""
LONG_PROMPT: Final = 2000.0
"""Tokens; shorter ones are computed in less than a second by nearly everything."""
FULL_CACHE: Final = 0.9
_COMPUTES: Final = ("prefill", "remote prefill", "embed")


@dataclass(frozen=True)
class WorkerFact:
    """A worker, as a frontend knows it."""

    part: str
    """Its name in `dynamo ps`, else its instance."""
    model: str = ""
    role: str = ""
    card: str = ""
    """What its model is told by; workers with another one are served apart."""
    running: int = 0
    waiting: int = 0
    most: int | None = None
    """Requests that its engine runs at once."""
    kv_usage: float | None = None


@dataclass(frozen=True)
class RunningFact:
    """A request under way."""

    id: str
    stage: str
    part: str
    """The worker that has it."""
    seconds: float
    """In this stage."""
    tokens: int = 0


def stalled(facts: TrafficFacts) -> Iterator[Finding]:
    """Yield the workers that have requests and give no token, or hardly any."""
    full = {worker.part for worker in facts.workers if _is_full(worker)}
    for part in dict.fromkeys(request.part for request in facts.running if request.part):
        here = [request for request in facts.running if request.part == part]
        slow = [request for request in here if _waits(request) or _crawls(request)]
        if slow and (part not in full or _none_moves(here)):
            yield _stalled(facts, part, max(slow, key=lambda request: request.seconds), len(slow))


def _is_full(worker: WorkerFact) -> bool:
    """Tell whether requests wait inside, since its engine runs as many as it may."""
    return worker.waiting > 0 and worker.running >= (worker.most or 1)


def _none_moves(here: Sequence[RunningFact]) -> bool:
    """Tell whether no request of a full worker has a token, though the oldest waits for long."""
    oldest = max(request.seconds for request in here)
    return oldest > 3 * STALLED_SECONDS and all(request.stage in _COMPUTES for request in here)


def _waits(request: RunningFact) -> bool:
    return request.stage in _COMPUTES and request.seconds > STALLED_SECONDS


def _crawls(request: RunningFact) -> bool:
    """Tell whether its tokens come slower than anybody reads."""
    late = request.seconds > STALLED_SECONDS
    return late and request.stage == "generate" and request.seconds > 2 * SLOW_TOKENS * request.tokens


def _stalled(facts: TrafficFacts, part: str, oldest: RunningFact, count: int) -> Finding:
    count_text = "1 request is" if count == 1 else f"{count} requests are"
    had = f"with {oldest.tokens} tokens" if oldest.tokens else "without a token"
    logs = f"dynamo logs {facts.pipeline}{facts.where}" if facts.where else f"dynamo logs {facts.pipeline}/{part}"
    return Finding(
        "slow-worker", f"{part} of {facts.pipeline} is slow, or never answers",
        f"{count_text} there; the oldest, {oldest.id}, for {oldest.seconds:.0f} s {had}",
        f"dynamo explain {oldest.id}; {logs} --tail 50; where the engine is a Python file, have it await and yield "
        f"(spec.components[].python.file), then {facts.again}",
    )  # fmt: skip


def findings(facts: TrafficFacts) -> Iterator[Finding]:
    """Yield what makes requests slow: no room at the frontend, none in an engine, long prompts, slow engines."""
    more = f"raise spec.replicas in {facts.file}, then {facts.again}"
    limited = list(_limited(facts))
    if facts.waiting or (facts.queue_seconds or 0) > SLOW_QUEUE:
        waits = f"they waited {facts.queue_seconds or 0:.1f} s on average; {facts.waiting} wait now"
        yield Finding(
            "slow-queue", f"requests of {facts.pipeline} wait for a worker with room", waits, more, Weight.WARNING
        )
    elif limited:
        yield from limited
    elif (facts.first_token_seconds or 0) > SLOW_FIRST_TOKEN:
        yield _late(facts, more)
    if (facts.token_seconds or 0) > SLOW_TOKENS:
        yield Finding(
            "slow-tokens", f"text of {facts.pipeline} comes slowly",
            f"{facts.token_seconds:.2f} s between two tokens on average: the engine is slow, or overfull",
            f"lower the engine's limit (max_num_seqs), max-num-seqs in spec.components[].engineArgs of {facts.file}; "
            f"{more}; or use a smaller model", Weight.WARNING,
        )  # fmt: skip


def _limited(facts: TrafficFacts) -> Iterator[Finding]:
    """Yield the workers whose engines hold requests back: at their own limit, or without room in the KV cache."""
    more = f"or spec.replicas, in {facts.file}, then {facts.again}"
    late = {request.part for request in facts.running if request.stage in _COMPUTES and request.seconds > SLOW_QUEUE}
    for worker in facts.workers:
        if not worker.waiting or worker.part not in late:
            continue
        what = f"{worker.waiting} requests of {facts.pipeline} wait inside {worker.part}"
        if worker.most and _is_full(worker):
            yield Finding(
                "engine-limit", what, f"its engine runs {worker.running} at once, its own limit (max_num_seqs)",
                f"raise it in spec.components[].engineArgs (max-num-seqs; llamacpp: n_parallel), {more}",
                Weight.WARNING,
            )  # fmt: skip
        elif (worker.kv_usage or 0) >= FULL_CACHE:
            yield Finding(
                "engine-full", what, f"its KV cache is full ({100 * (worker.kv_usage or 0):.0f}%)",
                f"lower spec.model.contextLength, {more}", Weight.WARNING,
            )  # fmt: skip


def _late(facts: TrafficFacts, more: str) -> Finding:
    what, seconds = f"answers of {facts.pipeline} begin late", f"{facts.first_token_seconds:.1f} s on average"
    prompts = f"prompts have {facts.prompt_tokens or 0:.0f} tokens on average"
    if (facts.prompt_tokens or 0) >= LONG_PROMPT:
        return Finding(
            "slow-first-token", what, f"{seconds}, and none waits here: the engines compute long prompts; {prompts}",
            f"{more}, or separate prefill and decode (dynamo example disagg)", Weight.WARNING,
        )  # fmt: skip
    return Finding(
        "slow-first-token", what,
        f"{seconds}, and none waits here; {prompts}, so the engine itself is slow, or had more than it runs at once",
        f"{more}; or raise max-num-seqs in spec.components[].engineArgs, or use a smaller model", Weight.WARNING,
    )  # fmt: skip
