"""The printed tables of `make bench-router`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.figures import Round, median, ratio
from bench.router.micro import Figure
from bench.router.scenarios import SIDES, Bar, Scenario

_COLUMNS = (
    ("hit ratio", "hit_ratio", "{:.3f}"),
    ("TTFT p50 ms", "ttft_p50_ms", "{:.1f}"),
    ("p99", "ttft_p99_ms", "{:.1f}"),
    ("ITL p50 ms", "itl_p50_ms", "{:.2f}"),
    ("p99", "itl_p99_ms", "{:.1f}"),
    ("tok/s", "tokens_per_second", "{:,.0f}"),
    ("frontend ms/request", "frontend_ms_per_request", "{:.2f}"),
    ("back after s", "restart_seconds", "{:.1f}"),
    ("hits of those before", "kept", "{:.3f}"),
)


def table(scenarios: Sequence[Scenario], results: Mapping[str, Mapping[str, Sequence[Round]]]) -> str:
    """A Markdown table: a row per scenario and side, its bars on our row; empty for none."""
    rows = [
        _row(scenario, side, results[scenario.name])
        for scenario in scenarios
        for side in SIDES
        if results.get(scenario.name, {}).get(side)
    ]
    if not rows:
        return ""
    return markdown(["", "side", *(title for title, *_ in _COLUMNS), "bars", "faults"], rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(scenario: Scenario, side: str, sides: Mapping[str, Sequence[Round]]) -> list[str]:
    rounds = sides[side]
    cells = [cell.format(value) if (value := median(rounds, key)) is not None else "-" for _, key, cell in _COLUMNS]
    bars = [text for bar in scenario.bars if (text := verdict(bar, sides))] if side == "ours" else []
    return [scenario.name, side, *cells, "; ".join(bars), str(sum(int(one["faults"]) for one in rounds))]


def verdict(bar: Bar, sides: Mapping[str, Sequence[Round]]) -> str:
    """A bar with its figure and whether that holds; empty where there is nothing to hold against it."""
    ours, peer = sides.get("ours", ()), sides.get("peer", ())
    if bar.ratio and any(one.get(bar.figure) is None for one in (*ours, *peer)):
        return f"{bar}: not told by all"
    value = ratio(ours, peer, bar.figure) if bar.ratio else median(ours, bar.figure)
    if value is None:
        return ""
    return f"{bar}: **{value:.3g}** {'ok' if bar.holds(value) else 'MISSED'}"


def micro_table(figures: Sequence[Figure]) -> str:
    """The costs, each with the peer's and with its bar, if it has them; empty for none."""
    rows = []
    for figure in figures:
        share = "" if figure.peer is None else f"**{figure.value / figure.peer:.2f}**"
        peer = "-" if figure.peer is None else number(figure.peer)
        rows.append([figure.name, figure.unit, number(figure.value), peer, share, figure.said])
    return markdown(["cost", "unit", "ours", "peer", "ratio", "bar"], rows) if rows else ""


def number(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
