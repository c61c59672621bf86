"""Which instance gets the next request: pure functions over candidates and their loads.

`Client`, the frontend's router and `dynamo simulate` call `select`. A load is whatever the caller counts: its own
requests on an instance, or how busy an engine says that it is.
"""

from __future__ import annotations

import enum
import random as _random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from dynamo.runtime.errors import InvalidArgument

T = TypeVar("T")


class RouterMode(enum.Enum):
    """Mode of picking an instance."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    LEAST_LOADED = "least-loaded"
    POWER_OF_TWO = "power-of-two"
    KV = "kv"
    """Where a prompt's beginning is cached: for requests of tokens, in a frontend."""

    @classmethod
    def parse(cls, text: RouterMode | str | None) -> RouterMode:
        """Read the mode of a `Client`, which has all but `kv`.

        `round-robin`, `round_robin` and `RoundRobin` are the same; None is the default.
        """
        if text is None:
            return cls.ROUND_ROBIN
        modes = [mode for mode in cls if mode is not cls.KV]
        if isinstance(text, cls) and text in modes:
            return text
        wanted = str(text).replace("-", "").replace("_", "").lower()
        for mode in modes:
            if mode.value.replace("-", "") == wanted:
                return mode
        raise InvalidArgument(f"router mode {text!r} must be one of {', '.join(mode.value for mode in modes)}")


ROUTER_MODES: Final = tuple(mode.value for mode in RouterMode)
"""The modes of a frontend by their names, as flags have them."""


def round_robin(candidates: Sequence[T], turn: int) -> T:
    """Return the candidate whose turn it is; the caller counts `turn` up."""
    return candidates[turn % len(candidates)]


def random(candidates: Sequence[T], rng: _random.Random) -> T:
    """Return any candidate, all equally likely."""
    return candidates[int(rng.random() * len(candidates))]


def least_loaded(candidates: Sequence[T], load: Callable[[T], float], turn: int = 0) -> T:
    """Return a candidate with the least load; `turn` goes round among equals."""
    loads = [load(candidate) for candidate in candidates]
    least = min(loads)
    return round_robin([candidate for candidate, own in zip(candidates, loads, strict=True) if own == least], turn)


def power_of_two(candidates: Sequence[T], load: Callable[[T], float], rng: _random.Random) -> T:
    """Return the less loaded of two drawn at random: nearly as even as the least loaded, without herds."""
    if len(candidates) == 1:
        return candidates[0]
    return min(rng.sample(candidates, 2), key=load)


def select(mode: RouterMode, candidates: Sequence[T], load: Callable[[T], float], turn: int, rng: _random.Random) -> T:
    """Return the choice of `mode` among `candidates`, which are not empty; of `kv`, for requests without tokens."""
    match mode:
        case RouterMode.RANDOM:
            return random(candidates, rng)
        case RouterMode.LEAST_LOADED | RouterMode.KV:
            return least_loaded(candidates, load, turn)
        case RouterMode.POWER_OF_TWO:
            return power_of_two(candidates, load, rng)
        case _:
            return round_robin(candidates, turn)
