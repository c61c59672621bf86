"""The arithmetic of the comparison: percentiles, medians over rounds, ratios, the printed table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.workloads import ABSOLUTE_BARS, Workload

Round = Mapping[str, Any]
Results = dict[str, dict[str, list[dict[str, Any]]]]
"""Rounds by workload or scenario, and side."""
SIDES = ("ours", "peer")
# Above it the servers wait for each other's cores: tokens come late, and come in bunches, which is cheaper.
OTHERS_LIMIT = 0.1


def had_faults(results: Results) -> bool:
    """Whether an answer of any round was wrong."""
    return any(one["faults"] for sides in results.values() for rounds in sides.values() for one in rounds)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of an ascending sequence lies (nearest rank); 0 for an empty one."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * percent // 100)
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def per_unit(workload: Workload, cpu_seconds: float, requests: int) -> float:
    """CPU time in the workload's own unit: microseconds per token or milliseconds per request."""
    if workload.metric == "us/token":
        return cpu_seconds * 1e6 / (requests * workload.tokens_out)
    return cpu_seconds * 1e3 / requests


def median(rounds: Iterable[Round], figure: str) -> float | None:
    """The median of one figure over the rounds that have it."""
    values = [float(r[figure]) for r in rounds if r.get(figure) is not None]
    return statistics.median(values) if values else None


def ratio(ours: Sequence[Round], peer: Sequence[Round], figure: str) -> float | None:
    """Median of the ratios of neighbouring rounds: what drifts with the machine cancels out."""
    pairs = [(float(a[figure]), float(b[figure])) for a, b in zip(ours, peer, strict=False)]
    values = [a / b for a, b in pairs if b > 0]
    return statistics.median(values) if values else None


def verdict(value: float | None, limit: float | None) -> str:
    """What a figure is worth against its bar."""
    if value is None or limit is None:
        return ""
    return "ok" if value <= limit else "MISSED"


_COLUMNS = (
    ("frontend", "frontend"),
    ("workers", "workers"),
    ("nats", "nats"),
    ("etcd", "etcd"),
    ("TTFT p50", "ttft_p50_ms"),
    ("p99", "ttft_p99_ms"),
    ("ITL p50", "itl_p50_ms"),
    ("p99", "itl_p99_ms"),
    ("tok/s", "tokens_per_second"),
    ("RSS MB", "rss_mb"),
)


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def table(workloads: Sequence[Workload], results: Mapping[str, Mapping[str, Sequence[Round]]]) -> str:
    """A Markdown table: a row per workload and side, the ratio and its bar on our row."""
    head = ["", "side", "unit", *(name for name, _ in _COLUMNS), "ratio", "bar", "", "faults"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for workload in workloads:
        sides = results.get(workload.name, {})
        for side in SIDES:
            rounds = sides.get(side, ())
            if rounds:
                lines.append(_row(workload, side, rounds, sides.get("peer", ()) if side == "ours" else ()))
    return "\n".join(lines)


def _row(workload: Workload, side: str, rounds: Sequence[Round], peer: Sequence[Round]) -> str:
    cells = [workload.name, side, workload.metric, *(_cell(median(rounds, key)) for _, key in _COLUMNS)]
    share = ratio(rounds, peer, "frontend")
    faults = sum(int(r["faults"]) for r in rounds)
    cells += [
        "" if share is None else f"**{share:.2f}**",
        "" if workload.bar is None or side == "peer" else f"<= {workload.bar:.2f}",
        verdict(share, workload.bar),
        str(faults),
    ]
    return "| " + " | ".join(cells) + " |"


_WHOLE = (
    ("tok/s", "tokens_per_second"),
    ("TTFT p50", "ttft_p50_ms"),
    ("p99", "ttft_p99_ms"),
    ("ITL p50", "itl_p50_ms"),
    ("p99", "itl_p99_ms"),
)
THROUGHPUT_BAR = 0.98
"""Tokens a second, ours to the peer's, in every workload."""


def whole_system(workloads: Sequence[Workload], results: Mapping[str, Mapping[str, Sequence[Round]]]) -> str:
    """A Markdown table of ratios: CPU time of all processes with its noise and bar, throughput, latencies."""
    head = ["", "CPU ours", "CPU peer", "unit", "CPU", "rounds", "bar", "", *(name for name, _ in _WHOLE), ""]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for workload in workloads:
        sides = results.get(workload.name, {})
        if sides.get("ours") and sides.get("peer"):
            lines.append(_whole_row(workload, sides["ours"], sides["peer"]))
    return "\n".join(lines)


def _whole_row(workload: Workload, ours: Sequence[Round], peer: Sequence[Round]) -> str:
    share = ratio(ours, peer, "total")
    each = [value for a, b in zip(ours, peer, strict=False) if (value := ratio([a], [b], "total")) is not None]
    throughput = ratio(ours, peer, "tokens_per_second")
    cells = [
        workload.name,
        _cell(median(ours, "total")),
        _cell(median(peer, "total")),
        workload.metric,
        "" if share is None else f"**{share:.2f}**",
        f"{min(each):.2f} to {max(each):.2f}" if each else "",
        "" if workload.total_bar is None else f"<= {workload.total_bar:.2f}",
        verdict(share, workload.total_bar),
        *(_cell(ratio(ours, peer, figure)) for _, figure in _WHOLE),
        "" if throughput is None else verdict(-throughput, -THROUGHPUT_BAR),
    ]
    return "| " + " | ".join(cells) + " |"


def disturbance(results: Mapping[str, Mapping[str, Sequence[Round]]]) -> list[str]:
    """A warning where other programs took so much of the machine that paced workloads mean little."""
    shares = {
        name: max(float(r.get("others_share", 0.0)) for rounds in sides.values() for r in rounds)
        for name, sides in results.items()
    }
    loud = [f"{name} {share:.0%}" for name, share in shares.items() if share > OTHERS_LIMIT]
    return [f"other programs used up to this much of the machine, repeat when it is quiet: {', '.join(loud)}"] * bool(
        loud
    )


def absolute_bars(results: Mapping[str, Mapping[str, Sequence[Round]]]) -> list[str]:
    """One line for each bar that is a figure of ours alone."""
    lines = []
    for name, figure, limit in ABSOLUTE_BARS:
        value = median(results.get(name, {}).get("ours", ()), figure)
        if value is not None:
            lines.append(f"{name}: {figure} {value:.2f} (bar <= {limit:g}) {verdict(value, limit)}")
    return lines
