"""Tables in a terminal: columns that line up, and ages and sizes in words."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def age(seconds: float) -> str:
    """Return `42s`, `3m`, `5h`, `2d`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def table(cells: Sequence[Row]) -> list[str]:
    """Lay rows out in columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def readable(size: float) -> str:
    """Return `3.2 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
