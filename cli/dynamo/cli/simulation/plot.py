"""Times to the first token as a drawing: which share of the requests waited how long, a line for each router mode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dynamo.cli.simulation.trace import TraceError

_WIDTH, _HEIGHT, _LEFT, _TOP = 640.0, 360.0, 60.0, 20.0
_POINTS: Final = 200
_COLOURS: Final = ("#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e")
_NS_PER_MS: Final = 1e6


def save_plot(file: Path, first: Mapping[str, Sequence[int]]) -> None:
    """Write an SVG; `first` has nanoseconds in ascending order by mode. Raises `TraceError`."""
    try:
        file.write_text(plot(first), encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror}") from None


def plot(first: Mapping[str, Sequence[int]]) -> str:
    """Draw the SVG: milliseconds to the right, in powers of ten, and the share of the requests upwards."""
    known = {mode: values for mode, values in first.items() if values}
    low = math.floor(min((_power(values[0]) for values in known.values()), default=0.0))
    high = max(low + 1, math.ceil(max((_power(values[-1]) for values in known.values()), default=1.0)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 160:g}" height="{_HEIGHT + 70:g}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    parts += _frame(low, high)
    for number, (mode, values) in enumerate(known.items()):
        parts += _line(mode, values, low, high, number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _power(nanoseconds: int) -> float:
    return math.log10(max(1e-3, nanoseconds / _NS_PER_MS))


def _x(power: float, low: int, high: int) -> float:
    return _LEFT + _WIDTH * (power - low) / (high - low)


def _y(share: float) -> float:
    return _TOP + _HEIGHT * (1 - share)


def _frame(low: int, high: int) -> list[str]:
    lines = []
    for power in range(low, high + 1):
        x = _x(power, low, high)
        lines.append(f'<path d="M{x:.1f} {_y(0):.1f}V{_y(1):.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{_y(0) + 18:.1f}" text-anchor="middle">{10.0**power:g}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        lines.append(f'<path d="M{_LEFT:g} {_y(share):.1f}h{_WIDTH:g}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 8:g}" y="{_y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    middle = _LEFT + _WIDTH / 2
    lines.append(f'<text x="{middle:g}" y="{_y(0) + 40:.1f}" text-anchor="middle">ms to the first token</text>')
    return lines


def _line(mode: str, values: Sequence[int], low: int, high: int, number: int) -> list[str]:
    """Return its share of requests at each of some hundred places, and its name."""
    count = len(values)
    ranks = sorted({round(step * (count - 1) / _POINTS) for step in range(_POINTS + 1)})
    points = " ".join(f"{_x(_power(values[at]), low, high):.1f},{_y((at + 1) / count):.1f}" for at in ranks)
    colour = _COLOURS[number % len(_COLOURS)]
    return [
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{_LEFT + _WIDTH + 12:g}" y="{_TOP + 16 + 18 * number:g}" fill="{colour}">{mode}</text>',
    ]
