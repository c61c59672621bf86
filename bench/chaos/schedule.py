"""Which fault happens when, to whom and for how long: a list that follows from a seed alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

REST: Final = 4.0
"""Seconds in which nothing else happens to what has just had a fault: it must have come back for the next to count."""
APART: Final = ("cut", "deaf", "mute", "reset", "lossy")
"""Faults of the network, which need one of our own."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault: how long it lasts, and how often it is drawn."""

    name: str
    shortest: float
    longest: float
    weight: int


WORKER: Final = (
    Kind("kill", 0.5, 4, 6), Kind("pause", 0.2, 8, 5), Kind("slow", 2, 8, 2), Kind("leave", 0.5, 3, 3),
    Kind("cut nats", 0.3, 9, 4), Kind("deaf nats", 0.3, 7, 1), Kind("mute nats", 0.3, 7, 1),
    Kind("reset nats", 0.3, 2, 2), Kind("lossy nats", 2, 8, 2), Kind("cut etcd", 0.5, 9, 2),
    Kind("cut both", 0.5, 9, 2),
)  # fmt: skip
FRONTEND: Final = (
    Kind("kill", 0.5, 3, 3), Kind("pause", 0.2, 4, 2), Kind("slow", 2, 5, 1), Kind("leave", 0.5, 3, 2),
    Kind("cut nats", 0.3, 6, 3), Kind("deaf nats", 0.3, 5, 1), Kind("mute nats", 0.3, 5, 1),
    Kind("reset nats", 0.3, 2, 1), Kind("lossy nats", 2, 6, 1), Kind("cut etcd", 0.5, 9, 2),
)  # fmt: skip
ETCD: Final = (
    Kind("kill", 0.2, 6, 2), Kind("empty", 0.2, 4, 1), Kind("pause", 0.5, 9, 2), Kind("slow", 2, 8, 1),
)  # fmt: skip
NATS: Final = (Kind("kill", 0.1, 5, 2), Kind("pause", 0.2, 6, 2), Kind("slow", 2, 8, 1))
KINDS: Final = {"worker": WORKER, "frontend": FRONTEND, "etcd": ETCD, "nats": NATS}
_SHARES: Final = {"worker": 12, "frontend": 5, "etcd": 3, "nats": 2}
_MOST: Final = {"worker": 2, "frontend": 1, "etcd": 1, "nats": 1}
"""How many of a sort have a fault at the same time: somebody is always there to answer."""


@dataclass(frozen=True)
class Fault:
    """One fault. Times are seconds since the run began."""

    at: float
    kind: str
    target: str
    seconds: float

    @property
    def end(self) -> float:
        return self.at + self.seconds

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.target:<10} {self.kind} for {self.seconds:.1f} s"


def sort_of(target: str) -> str:
    """`worker` of `worker-2`."""
    return target.rpartition("-")[0] or target


def schedule(
    seed: int, seconds: float, targets: Sequence[str], *, every: float = 3.0, without: Sequence[str] = ()
) -> list[Fault]:
    """Faults within `seconds`, one each `every` seconds at the mean; kinds that begin as `without` are left out.

    Those are drawn all the same, so that a seed means the same where a machine can't do them.
    """
    random, at = Random(f"faults {seed}"), 0.0
    made: list[Fault] = []
    while True:
        at += min(random.expovariate(1 / every), 3 * every) + 0.2
        sort = random.choices(list(_SHARES), list(_SHARES.values()))[0]
        target = random.choice([target for target in targets if sort_of(target) == sort])
        kind = random.choices(KINDS[sort], [kind.weight for kind in KINDS[sort]])[0]
        lasts = random.uniform(kind.shortest, kind.longest) * random.choice([0.3, 1.0])
        fault = Fault(round(at, 2), kind.name, target, round(max(lasts, kind.shortest), 2))
        if fault.end > seconds:
            return [one for one in made if not one.kind.startswith(tuple(without))] if without else made
        if fits(fault, made):
            made.append(fault)


def fits(fault: Fault, others: Sequence[Fault]) -> bool:
    """Its target has nothing else then, and not too many of its sort have."""
    near = [other for other in others if other.end + REST > fault.at]
    same = {one.target for one in near if sort_of(one.target) == sort_of(fault.target)}
    return fault.target not in same and len(same) < _MOST[sort_of(fault.target)]
