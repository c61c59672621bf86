"""Runs the targets, within a time: `Lane` does those that talk to a site, `children.py` those that need none."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, Protocol

from tests.fuzz.findings import Finding, Kept
from tests.fuzz.firing import Shot, fire_all
from tests.fuzz.judging import ONE, Answer, Bars, Seen, Worst, of_time, violations
from tests.fuzz.site import Site
from tests.fuzz.watch import Watch

AGAIN: Final = 2
"""How often a stall must come again to be no accident."""
_DATA: Final = 1 << 23


class Live(Protocol):
    """A target that talks to a site; `act` does what `case` made."""

    @property
    def NAME(self) -> str: ...

    @property
    def MODELS(self) -> Sequence[str]: ...

    def case(self, random: Random) -> tuple[str, Any]: ...


Act = Callable[[], Awaitable[Sequence[Answer]]]
"""Does something hostile, once, and tells how it was answered."""


class Lane:
    """Does things to a site, and keeps what came of it."""

    def __init__(self, site: Site, watch: Watch, kept: Kept, bars: Bars = ONE) -> None:
        self.site, self.bars, self._watch, self._kept = site, bars, watch, kept
        self.cases, self.worst = 0, Worst()

    async def target(self, target: Live, seed: int, seconds: float, first: int = 0, most: int | None = None) -> None:
        """Do cases of one target, by their numbers, until the time is over or there were `most`."""
        end, number = time.monotonic() + seconds, first
        while time.monotonic() < end and (most is None or number < first + most):
            name, made = target.case(Random(f"{target.NAME}/{seed}/{number}"))
            replay = f"--only {target.NAME} --seed {seed} --case {number}"
            await self.do(target.NAME, name, self._act(target, made), replay, data=_data(made))
            number += 1

    async def do(
        self, target: str, name: str, act: Act, replay: str, *, data: bytes = b"",
        bars: Bars | None = None, expected: Callable[[Seen], list[str]] = lambda seen: [],
    ) -> list[str]:  # fmt: skip
        """Do it, judge it, do it again where only time was broken; return what stays broken."""
        self.cases += 1
        bars = bars or self.bars
        broken = await self._judged(act, bars, expected)
        for _ in range(AGAIN):
            if not broken or not all(map(of_time, broken)):
                break
            broken = await self._judged(act, bars, expected)
        if broken:
            self._kept.add(Finding(target, name, broken, replay, data))
        self.site.revive()
        return broken

    async def _judged(self, act: Act, bars: Bars, expected: Callable[[Seen], list[str]]) -> list[str]:
        mark = await self._watch.begin()
        answers = await act()
        seen = await self._watch.end(mark, answers)
        self.worst.take(seen)
        return [*violations(seen, bars), *expected(seen)]

    def _act(self, target: Live, made: Any) -> Act:
        async def act() -> Sequence[Answer]:
            own: Callable[[Site, Any], Awaitable[Sequence[Answer]]] | None = getattr(target, "act", None)
            return await (own(self.site, made) if own is not None else fire_all(self.site.port, made))

        return act


def _data(made: Any) -> bytes:
    shots = made[:1] if isinstance(made, list) else []
    return b"".join(piece for shot in shots for piece in shot.pieces)[:_DATA]


def shot_act(port: int, shots: Sequence[Shot], times: int) -> Act:
    """Send all of these, each so often, at once."""

    async def act() -> Sequence[Answer]:
        return await fire_all(port, [replace(shot, patience=max(shot.patience, 120.0)) for shot in shots], times)

    return act
