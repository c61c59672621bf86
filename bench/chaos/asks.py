"""What the clients ask, drawn from a seed, and what each must be answered. Pure.

The mocker's text is a function of the request's seed, so the exact answer is known beforehand, whoever gives it and
however often it moves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from dynamo.worker.engines.mocker.answers import TEXT

MODEL: Final = "m"
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
PATIENCE: Final = 60.0
"""Seconds within which a request without a time limit of its own ends."""
_STOPS: Final = (" lazy", "wizards watch", "one step", ", and", "never said", "dog")
_TOO_LONG: Final = "x" * 60_000
"""More than the mockers' caches hold (`processes.py`)."""
_WORDS: Final = ["amber", "basil", "cedar", "delta", "ember", "frost", "grove", "haven", "ivory", "jade"]


@dataclass(frozen=True)
class Ask:
    """One request, and how its client behaves."""

    number: int
    path: str
    body: bytes
    stream: bool = False
    seed: int = 0
    prompt: int = 0
    """Characters of the prompt."""
    tokens: int = 0
    """At most so many are wanted, of each choice."""
    choices: int = 1
    stop: str | None = None
    limit: float | None = None
    """Seconds, told to the server."""
    leaves_after: float | None = None
    """The client goes away after so many seconds."""
    slow: bool = False
    """The client reads a little at a time."""
    refused: tuple[int, ...] = ()
    """A bad request: one of these statuses answers it."""
    media: str = "application/json"

    @property
    def patience(self) -> float:
        """Seconds within which it has to end."""
        return PATIENCE if self.limit is None else self.limit

    def expected(self, choice: int) -> tuple[str, str]:
        """Text and finish reason of a choice."""
        at = (self.seed + choice) % len(TEXT)
        whole = (TEXT * (self.tokens // len(TEXT) + 2))[at : at + self.tokens]
        found = whole.find(self.stop) if self.stop else -1
        return (whole[:found], "stop") if found >= 0 else (whole, "length")


def draw(random: Random, number: int) -> Ask:
    """The request of that number."""
    if random.random() < 0.06:
        return _bad(random, number)
    prompt = _prompt(random)
    tokens = random.choice([random.randrange(1, 20), *[random.randrange(20, 120)] * 3, random.randrange(120, 400)])
    choices = random.choice([1] * 8 + [2, 3])
    if choices > 1:
        tokens = min(tokens, 100)
    ask = make(
        number, random.choice([CHAT, TEXTS]), prompt, tokens, stream=random.random() < 0.7, choices=choices,
        seed=random.randrange(1_000_000), stop=random.choice(_STOPS) if random.random() < 0.2 else None,
        limit=random.choice([30.0] * 7 + [round(random.uniform(0.2, 2.0), 2), 3.0, None]),
    )  # fmt: skip
    behaves = random.random()
    if behaves < 0.1:
        return replace(ask, leaves_after=random.choice([0.0, random.uniform(0.01, 2.0)]))
    return replace(ask, slow=behaves < 0.15)


def make(
    number: int, path: str, prompt: str, tokens: int, *, stream: bool = True, choices: int = 1, seed: int = 0,
    stop: str | None = None, limit: float | None = 30.0,
) -> Ask:  # fmt: skip
    """A good request."""
    body: dict[str, Any] = {"model": MODEL, "max_tokens": tokens, "seed": seed, "n": choices, "stream": stream}
    body |= {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    if stop is not None:
        body["stop"] = [stop]
    if stream:
        body["stream_options"] = {"include_usage": True}
    return Ask(
        number, path, json.dumps(body).encode(), stream=stream, seed=seed, prompt=len(prompt), tokens=tokens,
        choices=choices, stop=stop, limit=limit,
    )  # fmt: skip


def _prompt(random: Random) -> str:
    """Some share long beginnings, as the turns of a chat do; one in twenty is long."""
    start = " ".join(_WORDS[random.randrange(4) :]) * 3 if random.random() < 0.5 else "x"
    size = random.randrange(4_000, 20_000) if random.random() < 0.05 else random.randrange(1, 300)
    # No space at either end: chat templates take those away.
    return start + "".join(random.choice("abcdefgh ijkl") for _ in range(32)) * (size // 32 + 1) + "."


def _bad(random: Random, number: int) -> Ask:
    """A request that is wrong in one of the usual ways; without any worker it may be 503 before."""
    path = random.choice([CHAT, TEXTS])
    good = json.loads(make(number, path, "x", 3, stream=random.random() < 0.5).body)
    kind = random.choice(["json", "model", "tokens", "n", "prompt", "media", "long"])
    if kind == "json":
        return Ask(number, path, b'{"model": "m", oops', refused=(400,))
    if kind == "media":
        return Ask(number, path, b"hello", refused=(415,), media="text/plain")
    changes: dict[str, Any] = {
        "model": {"model": "nobody"}, "tokens": {"max_tokens": -1}, "n": {"n": 0},
        "prompt": {"messages": [], "prompt": 7},
        "long": {"messages": [{"role": "user", "content": _TOO_LONG}], "prompt": _TOO_LONG},
    }  # fmt: skip
    refused = {"model": (404, 503), "long": (400, 404, 503)}.get(kind, (400,))
    return Ask(number, path, json.dumps(good | changes[kind]).encode(), refused=refused)
