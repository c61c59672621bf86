"""Pictures of terminals, made of what a page's steps printed when they ran: they can't show what isn't so.

A page test draws its picture anew into build/captures/. The one in docs/assets/ must show the same, but for numbers;
where it doesn't, the test says which file to copy.
"""

from __future__ import annotations

import html
import io
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[2]
ASSETS, DRAWN = ROOT / "docs/assets", ROOT / "build/captures"
WIDTH: Final = 100
MOST_LINES: Final = 14
FORMAT: Final = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
"""As rich's own, without a font from a foreign host."""


@dataclass(frozen=True)
class Typed:
    """What one step typed, and what it printed."""

    command: str
    output: str
    serves: bool = False
    """It goes on, and what it has printed by now depends on the moment."""


def lines(steps: list[Typed]) -> list[str]:
    """Return what the terminal shows: commands behind a prompt, the end of a long output."""
    shown: list[str] = []
    for step in steps:
        typed = step.command.strip().splitlines()
        shown += [f"$ {typed[0]}", *(f"> {line}" for line in typed[1:])]
        printed = [line.rstrip()[:WIDTH] for line in step.output.strip("\n").splitlines()]
        shown += printed if len(printed) <= MOST_LINES else [*printed[:MOST_LINES], "…"]
        shown.append("")
    return shown[:-1]


def drawn(name: str, title: str, steps: list[Typed]) -> str:
    """Return the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines(steps):
        style = "bold green" if line.startswith("$ ") else "green" if line.startswith("> ") else ""
        console.print(Text(line, style), soft_wrap=False, overflow="fold")
    return console.export_svg(title=title, code_format=FORMAT, unique_id=name)


def words(svg: str) -> list[str]:
    """Return the text of a picture, line by line, numbers and the space around them left out."""
    rows: dict[float, list[str]] = {}
    for y, text in re.findall(r"<text [^>]*y=\"([\d.]+)\"[^>]*>(.*?)</text>", svg):
        rows.setdefault(float(y), []).append(html.unescape(text).replace("\xa0", " "))
    return [re.sub(r"[\d.]+|\s+", " ", "".join(row)).strip() for _, row in sorted(rows.items())]


def check(name: str, title: str, steps: list[Typed]) -> None:
    """Draw a page's picture, and hold the one in docs/assets/ against it."""
    svg = drawn(name, title, steps)
    DRAWN.mkdir(parents=True, exist_ok=True)
    (DRAWN / f"{name}.svg").write_text(svg)
    kept = ASSETS / f"{name}.svg"
    shown = {*words(kept.read_text())} if kept.is_file() else set()
    steady = {*words(drawn(name, title, [replace(step, output="") if step.serves else step for step in steps]))}
    typed = {line for line in shown if line.startswith(("$", ">"))}
    assert steady <= shown, f"it shows less: cp build/captures/{name}.svg docs/assets/{name}.svg"
    assert typed <= steady, f"it shows more: cp build/captures/{name}.svg docs/assets/{name}.svg"
