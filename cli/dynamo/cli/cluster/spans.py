"""A length of time on the command line: `90s`, `10m`, `1h30m`, or seconds."""

from __future__ import annotations

import re
from typing import Any, Final

import click

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WHOLE: Final = re.compile(r"(?:\d{1,6}(?:\.\d+)?[smhd])+|\d{1,9}(?:\.\d+)?")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def seconds_of(text: str) -> float | None:
    """None for what is no length of time."""
    if not _WHOLE.fullmatch(text):
        return None
    parts = _PART.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts) if parts else float(text)


class Span(click.ParamType[float]):
    """Seconds, out of a text."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(value) if isinstance(value, int | float) else seconds_of(str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 90s, 10m or 1h", param, ctx)
        return found


SPAN: Final = Span()
