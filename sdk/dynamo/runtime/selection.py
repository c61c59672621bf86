"""Which instance gets the next request: pure functions over candidates and loads.

`Client` and the frontend's router call them. `loads` counts the requests that the
caller itself has running on an instance; one that is missing has none.
"""

from __future__ import annotations

import enum
import random as _random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from dynamo.runtime.errors import InvalidArgument

T = TypeVar("T")


class RouterMode(enum.Enum):
    """How a client picks an instance."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    POWER_OF_TWO = "power-of-two"

    @classmethod
    def parse(cls, text: RouterMode | str | None) -> RouterMode:
        """`round-robin`, `round_robin` and `RoundRobin` are the same; None is the default."""
        if text is None:
            return cls.ROUND_ROBIN
        if isinstance(text, cls):
            return text
        wanted = str(text).replace("-", "").replace("_", "").lower()
        for mode in cls:
            if mode.value.replace("-", "") == wanted:
                return mode
        raise InvalidArgument(f"router mode {text!r} must be one of {', '.join(mode.value for mode in cls)}")


def round_robin(candidates: Sequence[T], turn: int) -> T:
    """The candidate whose turn it is; the caller counts `turn` up."""
    return candidates[turn % len(candidates)]


def random(candidates: Sequence[T], rng: _random.Random) -> T:
    return candidates[rng.randrange(len(candidates))]


def least_loaded(candidates: Sequence[T], loads: Mapping[T, int], turn: int = 0) -> T:
    """One with the fewest requests; `turn` goes round among equals."""
    least = min(loads.get(candidate, 0) for candidate in candidates)
    return round_robin([candidate for candidate in candidates if loads.get(candidate, 0) == least], turn)


def power_of_two(candidates: Sequence[T], loads: Mapping[T, int], rng: _random.Random) -> T:
    """The less loaded of two drawn at random: nearly as even as the least loaded, without herds."""
    if len(candidates) == 1:
        return candidates[0]
    first, second = rng.sample(candidates, 2)
    return second if loads.get(second, 0) < loads.get(first, 0) else first


def select(mode: RouterMode, candidates: Sequence[T], loads: Mapping[T, int], turn: int, rng: _random.Random) -> T:
    """The choice of `mode` among `candidates`, which are not empty."""
    match mode:
        case RouterMode.RANDOM:
            return random(candidates, rng)
        case RouterMode.LEAST_LOADED:
            return least_loaded(candidates, loads, turn)
        case RouterMode.POWER_OF_TWO:
            return power_of_two(candidates, loads, rng)
        case _:
            return round_robin(candidates, turn)
