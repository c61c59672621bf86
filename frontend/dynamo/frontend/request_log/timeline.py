"""A request's record as stages, one after the other, that add up to all of its time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from dynamo.frontend.request_log.log import RUNNING, Event, Failure, Placement, RequestRecord, Wait

WAITED_IN_VAIN: Final = (503, 504, 499)
"""How a request ends that no worker ever had room for."""


class Rival(msgspec.Struct, frozen=True):
    """A worker that was not chosen."""

    worker: str
    cost: float


class Stage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage; times are milliseconds since the request came."""

    name: str
    begins_ms: float
    took_ms: float
    what: str = ""
    others: list[Rival] = []
    """The cheapest workers that were not chosen, in router mode kv."""


class Explanation(msgspec.Struct, frozen=True):
    """What `GET /requests/ID` answers; of a request under way, its last stage is where it is now."""

    id: str
    endpoint: str
    model: str
    stream: bool
    status: int
    """0 while it is under way."""
    error: str
    received: float
    """Unix time."""
    took_ms: float
    ttft_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    stages: list[Stage]


class RunningRequests(msgspec.Struct, frozen=True):
    """What `GET /requests` answers: the oldest requests under way."""

    running: list[Explanation] = []


class Mark(NamedTuple):
    """A stage begins."""

    at: float
    name: str
    what: str
    others: tuple[tuple[int, float], ...] = ()


def explain(record: RequestRecord, age: float, now: float) -> Explanation:
    """Return what became of a request that came `age` seconds before `now` (Unix time)."""
    marks = sorted(_marks(record), key=lambda mark: mark.at)
    ends = [mark.at for mark in marks[1:]] + [record.ended]
    stages = [_stage(record.began, mark, end) for mark, end in zip(marks, ends, strict=True)]
    return Explanation(
        id=record.id, endpoint=record.endpoint, model=record.model, stream=record.kind == "stream",
        status=record.status, error=record.error, received=now - age, took_ms=_ms(record.began, record.ended),
        ttft_ms=_ms(record.began, record.first_token) if record.first_token else None,
        prompt_tokens=record.prompt_tokens, cached_tokens=record.cached_tokens, output_tokens=record.output_tokens,
        stages=stages,
    )  # fmt: skip


def _stage(began: float, mark: Mark, end: float) -> Stage:
    others = [Rival(f"{instance:014x}", round(cost, 3)) for instance, cost in mark.others]
    return Stage(mark.name, _ms(began, mark.at), _ms(mark.at, end), mark.what, others)


def _marks(record: RequestRecord) -> Iterator[Mark]:
    yield Mark(record.began, "receive", "body read and checked, model found")
    for event in record.events:
        if isinstance(event, Wait):
            yield Mark(event.at, "wait", event.what)
            yield Mark(event.until, "receive", "a worker has come, or the wait was over")
    if record.tokenized:
        yield Mark(
            record.tokenized, "tokenize", f"{record.prompt_tokens} prompt tokens" if record.prompt_tokens else ""
        )
    if record.ready:
        yield from _routing(record)
    if record.first_token:
        yield Mark(record.first_token, "generate", _speed(record))
    yield from _attempts(record)


def _routing(record: RequestRecord) -> Iterator[Mark]:
    """Yield the wait for room and the choice apart; nobody waits where the model has no gate."""
    if record.admitted > record.ready:
        yield Mark(record.ready, "queue", "waits for a worker with room")
        yield Mark(record.admitted, "route", "chooses a worker")
    elif record.status == RUNNING and not any(event.at >= record.ready for event in record.events):
        yield Mark(record.ready, "queue", "waits for a worker with room")
    elif record.status in WAITED_IN_VAIN and not record.events:
        yield Mark(record.ready, "queue", "waited for a worker with room, in vain")
    else:
        yield Mark(record.ready, "route", "chooses a worker")


def _attempts(record: RequestRecord) -> Iterator[Mark]:
    """Yield a mark for all placements, or all failures, that come one after the other: choices begin at once."""
    group: list[Event] = []
    for event in record.events:
        if isinstance(event, Wait):
            continue
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
        return Mark(event.at, "retry", event.reason)
    said = ", ".join(dict.fromkeys(_placed(each) for each in group if isinstance(each, Placement)))
    assert isinstance(event, Placement)
    if event.prefill:
        return Mark(event.at, "remote prefill", f"worker {said}", event.others)
    if record.first_token and event.at >= record.first_token:
        return Mark(event.at, "generate", f"continues at worker {said}", event.others)
    name = "embed" if record.endpoint == "embeddings" else "prefill"
    return Mark(event.at, name, f"worker {said}", event.others)


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
