"""Whether anything was left behind: what processes and servers hold at the end and at first. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FILES: Final = 3
TASKS: Final = 3
THREADS: Final = 6
"""Thread pools fill as they are used; gRPC's come and go."""
MEGABYTES: Final = 40.0
"""Caches of tokenised prompts and of blocks fill while a run lasts."""
MEGABYTES_A_MINUTE: Final = 1.0
IDLE: Final = ("running", "waiting", "inflight", "kv", "queued", "connections")
"""Figures that are 0 when nobody asks anything."""
_IDS: Final = re.compile(r"\b[0-9a-f]{14}\b")
_COUNTS: Final = re.compile(r"\.r\.\w+$")


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    name: str
    life: int
    minutes: float
    """Since it was started."""
    files: int
    threads: int
    megabytes: float
    tasks: int
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Servers:
    """What etcd and NATS hold for all of them."""

    keys: frozenset[str]
    """etcd's keys below `dynamo/`."""
    subjects: tuple[tuple[str, ...], ...]
    """Per connection of NATS what it listens to."""


def pattern(text: str) -> str:
    """A key or subject without the ids in it, so that those of two lives are alike."""
    return _COUNTS.sub(".r.*", _IDS.sub("*", text))


def left_over(first: Iterable[Held], now: Iterable[Held]) -> list[str]:
    """What processes hold beyond what one of their sort held at first. A process of a later life is measured by the
    first one's beginning, too: they do the same."""
    begun = {held.name: held for held in first}
    return [text for held in now for text in _more(begun[held.name], held)]


def _more(first: Held, now: Held) -> Iterable[str]:
    memory = MEGABYTES + MEGABYTES_A_MINUTE * now.minutes
    limits = (
        ("file descriptors", first.files, now.files, FILES),
        ("threads", first.threads, now.threads, THREADS),
        ("MB of memory", first.megabytes, now.megabytes, memory),
        ("asyncio tasks", first.tasks, now.tasks, TASKS),
    )
    for what, before, after, more in limits:
        if after > before + more:
            yield f"{now.name} (life {now.life}) has {after:.0f} {what}, had {before:.0f} at first"
    for name in IDLE:
        if now.figures.get(name, 0.0) > 1e-9:
            yield f"{now.name} (life {now.life}) still has {name} {now.figures[name]:g}"


def changed(first: Servers, now: Servers, instances: frozenset[str]) -> list[str]:
    """How the servers differ from their beginning; `instances` are the ids (hexadecimal) of the workers that live."""
    found = []
    there = {key.rsplit("/", 1)[-1] for key in now.keys if key.startswith("dynamo/instances/")}
    if there != instances:
        found.append(f"etcd has instances {sorted(there - instances)} too many and lacks {sorted(instances - there)}")
    found += _differences("etcd has keys", map(pattern, first.keys), map(pattern, now.keys))
    return found + _differences("NATS has connections that listen to", _shapes(first), _shapes(now))


def _shapes(servers: Servers) -> list[str]:
    return [", ".join(_shape(subjects)) for subjects in servers.subjects]


def _shape(subjects: Iterable[str]) -> list[str]:
    """What it listens to, sorted. A worker listens for answers once it has asked another worker something, so whether
    it does is no difference; that it does twice would be one."""
    found = sorted(map(pattern, subjects))
    if any(".ep." in subject for subject in found):
        for answers in {subject for subject in found if ".in." in subject}:
            found.remove(answers)
    return found


def _differences(what: str, first: Iterable[str], now: Iterable[str]) -> list[str]:
    before, after = Counter(first), Counter(now)
    more, less = after - before, before - after
    return [f"{what} {count} x {one!r} too many" for one, count in more.items()] + [
        f"{what} {count} x {one!r} too few" for one, count in less.items()
    ]
