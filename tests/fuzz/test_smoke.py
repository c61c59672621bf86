"""A few cases of each target with fixed seeds, and one attack of each finding: what `make fuzz` does for longer.

Other tests run on this machine at the same time, so waits count only where they are a catastrophe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.fuzz import children
from tests.fuzz.__main__ import LIVE
from tests.fuzz.findings import Kept
from tests.fuzz.judging import Bars
from tests.fuzz.lane import Lane
from tests.fuzz.site import MODEL, Site, pair
from tests.fuzz.targets import attacks
from tests.fuzz.watch import Watch

pytestmark = [pytest.mark.processes(seconds=90), pytest.mark.servers, pytest.mark.timeout(600)]
LOOSE = Bars(live=5.0, pause=5.0)
OFTEN = 0.25
"""Seconds from question to question of who is watched: a twentieth of what counts as a wait here."""
SEED = 7
CASES = {"bodies": 25, "http": 15, "wire": 10, "constraints": 15}
MADE = {"parsers": 10, "files": 15, "templates": 8, "pipelines": 10}
"""Beside the corpus."""


@pytest.mark.parametrize("name", children.TARGETS)
def test_cases_without_a_site(name: str, tmp_path: Path) -> None:
    """The whole corpus and some made ones: each ends in time, in words, with little memory."""
    kept = Kept(lambda text: None, tmp_path)
    most = len(children.target(name).corpus()) + MADE[name]
    assert children.run(name, SEED, 500.0, kept, most=most, slower=4.0) == most
    assert [finding.lines() for finding in kept.findings] == []


LONG: Final = frozenset({"tool-filler", "one-byte-chunks", "unchecked-fields", "slow-bodies"})
"""Attacks of twenty seconds and more."""


def first_attacks() -> list[attacks.Attack]:
    """One of each finding."""
    quick = [attack for attack in attacks.ALL.values() if attack.name not in LONG and not attack.flags]
    return [*{attack.finding: attack for attack in reversed(quick)}.values()][::-1]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    """One that is attacked and its control, with all models: they take as long to start as the attacks.

    The other library for tokenizers takes seconds to load a large one, and gives the same ids.
    """
    models = [model for target in LIVE for model in target.MODELS]
    models += [model for attack in first_attacks() for model in attack.models]
    with pair(tmp_path_factory.mktemp("sites"), [*dict.fromkeys([MODEL, *models])], "--tokenizer", "default") as both:
        yield both


def test_cases_before_a_site(sites: tuple[Site, Site], tmp_path: Path) -> None:
    """Bodies, bytes, messages and constraints: no process ends, no log is forged, no 5xx that isn't meant."""
    kept = Kept(lambda text: None, tmp_path / "found")

    async def main(site: Site, control: Site) -> None:
        async with Watch(site, control, every=OFTEN) as watch:
            for target in LIVE:
                lane = Lane(site, watch, kept, LOOSE)
                await lane.target(target, SEED, 500.0, most=CASES[target.NAME])

    asyncio.run(main(*sites))
    assert [finding.lines() for finding in kept.findings] == []


def test_attacks_are_held(sites: tuple[Site, Site], tmp_path: Path) -> None:
    """What was found once is refused or harmless: the first attack of each finding."""
    kept = Kept(lambda text: None, tmp_path / "found")
    wanted = first_attacks()
    assert len(wanted) >= 8

    async def main(site: Site, control: Site) -> None:
        async with Watch(site, control, every=OFTEN) as watch:
            for attack in wanted:
                await attacks.fire(attack, Lane(site, watch, kept, LOOSE))

    asyncio.run(main(*sites))
    assert [finding.lines() for finding in kept.findings] == []
