"""What a simulation found out, as figures and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dynamo.cli.simulation.cluster import Cluster

_MS = 1e-6


@dataclass(frozen=True)
class Figures:
    """One router mode; times in milliseconds of simulated time."""

    mode: str
    requests: int
    refused: int
    """Prompts that don't fit into an engine at all."""
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    hit_ratio: float
    """Share of all prompt tokens that needed no computing."""
    tokens_per_second: float
    """Of answers, from the first request to the last token."""
    preemptions: int
    simulated_seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures(mode: str, cluster: Cluster, began: int) -> Figures:
    """Return the figures of a cluster whose calls have ended, the first of which came at `began`."""
    seen = cluster.seen
    first = [(value, 1) for value in sorted(seen.first)]
    gaps = sorted(seen.gaps.items())
    seconds = max(0, seen.last - began) * 1e-9
    return Figures(
        mode=mode, requests=seen.requests, refused=seen.refused,
        ttft_p50_ms=percentile(first, 50) * _MS, ttft_p99_ms=percentile(first, 99) * _MS,
        itl_p50_ms=percentile(gaps, 50) * _MS, itl_p99_ms=percentile(gaps, 99) * _MS,
        hit_ratio=seen.tokens_cached / seen.tokens_in if seen.tokens_in else 0.0,
        tokens_per_second=seen.tokens_out / seconds if seconds else 0.0,
        preemptions=sum(engine.stepper.scheduler.preemptions for engine in cluster.engines),
        simulated_seconds=seconds,
    )  # fmt: skip


def percentile(counted: Sequence[tuple[int, int]], percent: float) -> int:
    """Return the value below which `percent` lies (nearest rank), of `(value, how often)` in ascending order.

    0 for none.
    """
    total = sum(count for _, count in counted)
    rank, passed = max(1, -(-total * percent // 100)), 0
    for value, count in counted:
        passed += count
        if passed >= rank:
            return value
    return 0


_COLUMNS = ("router", "requests", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "hit ratio", "tokens/s")


def table(results: Iterable[Figures]) -> str:
    """Lay the figures out for people: a line for each mode, columns aligned.

    Refusals and preemptions below, where there are any.
    """
    results = list(results)
    rows = [_COLUMNS, *(_row(figures) for figures in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [
        f"{figures.mode}: {figures.preemptions:,} times a request was sent back to the queue for want of KV blocks"
        for figures in results
        if figures.preemptions
    ]
    if results and results[0].refused:
        lines.append(f"{results[0].refused:,} prompts are longer than the engine takes, and were refused")
    return "\n".join(lines)


def _row(figures: Figures) -> tuple[str, ...]:
    times = (figures.ttft_p50_ms, figures.ttft_p99_ms, figures.itl_p50_ms, figures.itl_p99_ms)
    return (
        figures.mode, f"{figures.requests:,}", *(f"{value:,.2f}" for value in times),
        f"{figures.hit_ratio:.3f}", f"{figures.tokens_per_second:,.0f}",
    )  # fmt: skip
