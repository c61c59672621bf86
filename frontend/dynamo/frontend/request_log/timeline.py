"""A request's record as stages, one after the other, that add up to all of its time. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dynamo.frontend.request_log.log import Event, Failure, Placement, RequestRecord


class Stage(msgspec.Struct, frozen=True):
    """A stage; times are milliseconds since the request came."""

    name: str
    begins_ms: float
    took_ms: float
    what: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """What `GET /requests/ID` answers."""

    id: str
    endpoint: str
    model: str
    stream: bool
    status: int
    error: str
    received: float
    """Unix time."""
    took_ms: float
    ttft_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    stages: list[Stage]


Mark = tuple[float, str, str]
"""When a stage begins, its name, and what is to be said of it."""


def explain(record: RequestRecord, age: float, now: float) -> Explanation:
    """Return what became of a request that came `age` seconds before `now` (Unix time)."""
    marks = sorted(_marks(record), key=lambda mark: mark[0])
    ends = [at for at, _, _ in marks[1:]] + [record.ended]
    stages = [
        Stage(name, _ms(record.began, at), _ms(at, end), what)
        for (at, name, what), end in zip(marks, ends, strict=True)
    ]
    return Explanation(
        id=record.id, endpoint=record.endpoint, model=record.model, stream=record.kind == "stream",
        status=record.status, error=record.error, received=now - age, took_ms=_ms(record.began, record.ended),
        ttft_ms=_ms(record.began, record.first_token) if record.first_token else None,
        prompt_tokens=record.prompt_tokens, cached_tokens=record.cached_tokens, output_tokens=record.output_tokens,
        stages=stages,
    )  # fmt: skip


def _marks(record: RequestRecord) -> Iterator[Mark]:
    yield record.began, "receive", "body read and checked, model found"
    if record.tokenized:
        yield record.tokenized, "tokenize", f"{record.prompt_tokens} prompt tokens" if record.prompt_tokens else ""
    if record.ready:
        yield record.ready, "route", "waits for a worker with room, and chooses it"
    if record.first_token:
        yield record.first_token, "generate", _speed(record)
    yield from _attempts(record)


def _attempts(record: RequestRecord) -> Iterator[Mark]:
    """Yield a mark for all placements, or all failures, that come one after the other: choices begin at once."""
    group: list[Event] = []
    for event in record.events:
        if group and not _is_alike(group[0], event, record.first_token):
            yield _attempt(group, record)
            group = []
        group.append(event)
    if group:
        yield _attempt(group, record)


def _is_alike(one: Event, other: Event, first_token: float) -> bool:
    if isinstance(one, Placement) and isinstance(other, Placement):
        return one.prefill == other.prefill and (one.at < first_token) == (other.at < first_token)
    return isinstance(one, Failure) and isinstance(other, Failure)


def _attempt(group: list[Event], record: RequestRecord) -> Mark:
    event = group[0]
    if isinstance(event, Failure):
        return event.at, "retry", event.reason
    said = ", ".join(dict.fromkeys(_placed(each) for each in group if isinstance(each, Placement)))
    if event.prefill:
        return event.at, "remote prefill", f"worker {said}"
    if record.first_token and event.at >= record.first_token:
        return event.at, "generate", f"continues at worker {said}"
    return event.at, "embed" if record.endpoint == "embeddings" else "prefill", f"worker {said}"


def _placed(placement: Placement) -> str:
    text = f"{placement.instance:014x}"
    if placement.cost is None:
        return text
    return f"{text} ({placement.overlap_blocks} of {placement.prompt_blocks} blocks cached, cost {placement.cost:.3f})"


def _speed(record: RequestRecord) -> str:
    tokens, seconds = record.output_tokens, record.ended - record.first_token
    if tokens < 2:
        return f"{tokens} output tokens"
    return f"{tokens} output tokens, one in {seconds * 1000 / (tokens - 1):.1f} ms"


def _ms(since: float, until: float) -> float:
    return round((until - since) * 1000, 3)
