"""What requests under load say of a server: latencies, throughput, goodput, workers for a target. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

_PERCENTS: Final = (50, 90, 99)
_BARS: Final = 40
"""Characters of the longest bar of a plot."""
_BUCKETS: Final = 10


class Sample(NamedTuple):
    """One request; times are seconds on one clock."""

    began: float
    first: float | None = None
    """First token; None: none came."""
    last: float = 0.0
    tokens: int = 0
    error: str = ""
    """Why it failed; empty: it didn't."""

    @property
    def ttft(self) -> float:
        """Seconds until the first token."""
        return (self.first or self.last) - self.began

    @property
    def itl(self) -> float | None:
        """Mean seconds between tokens; None with fewer than two."""
        return None if self.first is None or self.tokens < 2 else (self.last - self.first) / (self.tokens - 1)


class Targets(NamedTuple):
    """Latencies within which an answer counts as good, in seconds; None: any."""

    ttft: float | None = None
    itl: float | None = None

    def met(self, sample: Sample) -> bool:
        """Tell whether an answer was good."""
        fast = self.ttft is None or sample.ttft <= self.ttft
        return fast and (self.itl is None or (sample.itl or 0.0) <= self.itl)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent don't exceed; `values` is not empty."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)]


def figures(samples: Sequence[Sample], seconds: float, targets: Targets) -> dict[str, Any]:
    """Return all that was measured in so many seconds, ready for JSON."""
    good = list(filter(_answered, samples))
    tokens = sum(sample.tokens for sample in good)
    met = sum(map(targets.met, good))
    seconds = max(seconds, 1e-9)
    return {
        "requests": len(samples), "failed": len(samples) - len(good), "seconds": round(seconds, 3),
        "requests_per_second": len(good) / seconds, "output_tokens_per_second": tokens / seconds,
        "output_tokens": tokens, "good": met, "goodput_requests_per_second": met / seconds,
        "ttft_ms": _spread([sample.ttft for sample in good]),
        "itl_ms": _spread([itl for sample in good if (itl := sample.itl) is not None]),
        "request_ms": _spread([sample.last - sample.began for sample in good]),
        "errors": dict(Counter(_why(sample) for sample in samples if not _answered(sample)).most_common(5)),
    }  # fmt: skip


def _answered(sample: Sample) -> bool:
    return not sample.error and sample.first is not None


def _why(sample: Sample) -> str:
    return sample.error or "no token came"


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": round(percentile(values, percent) * 1000, 3) for percent in _PERCENTS} if values else {}


def workers_for(rate: float, measured: dict[str, Any]) -> int | None:
    """Return how many servers like this one a rate of good answers needs; None where none was good.

    Assumes that servers share nothing, and that load is spread evenly over them.
    """
    each = measured["goodput_requests_per_second"]
    return math.ceil(rate / each) if each else None


def lines(measured: dict[str, Any], samples: Sequence[Sample], targets: Targets) -> Iterator[str]:
    """Yield the report as text, within 80 columns."""
    answered = measured["requests"] - measured["failed"]
    yield f"requests     {answered} answered, {measured['failed']} failed, in {measured['seconds']:.1f} s"
    for text, count in measured["errors"].items():
        yield f"             {count} x {text[:60]}"
    yield (
        f"throughput   {measured['requests_per_second']:.2f} requests/s, "
        f"{measured['output_tokens_per_second']:.1f} output tokens/s"
    )
    if targets != Targets():
        yield f"goodput      {measured['goodput_requests_per_second']:.2f} requests/s within the targets"
    yield ""
    yield f"{'ms':13}{'p50':>10}{'p90':>10}{'p99':>10}"
    for name, title in (("ttft_ms", "TTFT"), ("itl_ms", "ITL"), ("request_ms", "whole")):
        if spread := measured[name]:
            yield f"{title:13}" + "".join(f"{spread[f'p{percent}']:>10.1f}" for percent in _PERCENTS)
    if len(good := [sample.ttft * 1000 for sample in samples if _answered(sample)]) > 1:
        yield ""
        yield "TTFT, ms"
        yield from plot(good)


def plot(values: Sequence[float]) -> Iterator[str]:
    """Yield a histogram, a line for each range of values."""
    low, high = min(values), max(values)
    width = (high - low) / _BUCKETS or 1.0
    counts = Counter(min(int((value - low) / width), _BUCKETS - 1) for value in values)
    for bucket in range(max(counts) + 1):
        bar = "#" * math.ceil(_BARS * counts[bucket] / max(counts.values()))
        yield f"{low + bucket * width:10.1f}  {bar} {counts[bucket] or ''}".rstrip()
