"""What the soak calls growth, and who comes and goes in it: the pure parts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.soak import growth, serving
from bench.soak.growth import Readings, Series, judged, slope

HOUR = 3600.0


def memory(of_hour: float, *, noise: float = 0.0, warm_up: float = 0.0, seconds: float = HOUR) -> Series:
    """Megabytes that grow by so much an hour, after caches have filled in the first quarter."""
    dice, times = random.Random(1), [10.0 * number for number in range(int(seconds / 10) + 1)]
    filled = [warm_up * min(1.0, t / (seconds * growth.WARM)) for t in times]
    values = [200 + full + of_hour * t / HOUR + dice.gauss(0, noise) for t, full in zip(times, filled, strict=True)]
    return Series("frontend-1", "megabytes", times, values, is_memory=True)


@pytest.mark.parametrize(("of_hour", "missed"), [(0.0, False), (0.5, False), (2.0, True), (60.0, True), (-3.0, False)])
def test_memory_is_judged_by_its_slope(of_hour: float, missed: bool) -> None:
    """What fills caches at first isn't growth, and noise of half a megabyte hides none."""
    judgement = judged(memory(of_hour, noise=0.5, warm_up=80.0), HOUR)
    assert judgement.an_hour == pytest.approx(of_hour, abs=0.3)
    assert judgement.missed is missed
    assert ("MISSED" in str(judgement)) is missed


def test_single_peaks_are_no_growth() -> None:
    """A reading in the middle of large requests says nothing; the same for the last ones of a run."""
    flat = memory(0.0)
    values = [value + 300 if number % 10 == 0 or number > 350 else value for number, value in enumerate(flat.values)]
    assert judged(Series("f", "megabytes", flat.times, values, is_memory=True), HOUR).an_hour == pytest.approx(0.0)


@pytest.mark.parametrize(("last", "missed"), [(40.0, False), (41.0, False), (44.0, True)])
def test_counts_are_judged_by_their_rise(last: float, missed: bool) -> None:
    """One descriptor more is a moment's; some more that stay are a leak."""
    times = [float(number) for number in range(100)]
    values = [40.0 if number < 60 else last for number in range(100)]
    assert judged(Series("worker-1", "files", times, values), 100).missed is missed


def test_what_was_hardly_read_is_not_judged() -> None:
    """Too few readings, or none near the end: what has stopped to answer doesn't grow either."""
    with pytest.raises(ValueError, match="run for longer"):
        judged(memory(0.0, seconds=100), 100)
    with pytest.raises(ValueError, match="near the end"):
        judged(memory(0.0, seconds=HOUR / 2), HOUR)


def test_slopes_of_little() -> None:
    """One reading has no slope, two have one; readings of the same moment are no pair."""
    assert slope([1.0], [5.0]) == 0.0
    assert slope([1.0, 3.0], [5.0, 9.0]) == 2.0
    assert slope([1.0, 1.0], [5.0, 9.0]) == 0.0


def test_readings_are_sorted_into_series() -> None:
    """Only megabytes are memory."""
    readings = Readings()
    readings.add(1.0, "b", files=3, megabytes=7.5)
    readings.add(2.0, "b", files=4, megabytes=8.5)
    readings.add(2.0, "a", keys=1)
    assert [(s.of, s.what, list(s.values), s.is_memory) for s in readings.series()] == [
        ("a", "keys", [1], False), ("b", "files", [3, 4], False), ("b", "megabytes", [7.5, 8.5], True)
    ]  # fmt: skip


def test_the_last_memory_in_a_line() -> None:
    readings = Readings()
    readings.add(1.0, "b", files=3, megabytes=7.5)
    readings.add(2.0, "b", megabytes=8.6)
    readings.add(2.0, "a", keys=1)
    assert readings.line() == "b 9 MB"


def test_everybody_but_those_that_are_read_goes_both_ways() -> None:
    """By themselves and outright; servers are killed, too; at the end nothing happens."""
    faults = serving.churn(HOUR)
    of = {name: {fault.kind for fault in faults if fault.target == name} for name in {f.target for f in faults}}
    assert of == {
        **{key: {"leave", "kill"} for key in serving.COME_AND_GO}, **{key: {"kill"} for key in serving.SERVERS}
    }  # fmt: skip
    assert not of.keys() & set(serving.STAY)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert faults[-1].end <= HOUR - serving.QUIET
    assert serving.churn(serving.QUIET) == []
