"""The chart's alerts, and the same in a hurry: `FACTOR` is the one place that says how much."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

REPOSITORY: Final = Path(__file__).parents[1]
ALERTS: Final = REPOSITORY / "charts/dynamo-platform/files/alerts.yaml"
FACTOR: Final = 60
"""What the chart waits minutes for is waited for seconds: `for:` and the windows of queries, no threshold."""
_MILLISECONDS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000}
_WINDOW: Final = re.compile(r"\[(\d+[smh])(?::(\d+[smh]))?\]")

Rule = dict[str, Any]


def alerts() -> list[Rule]:
    """The rules as they stand in the chart."""
    rules: list[Rule] = yaml.safe_load(ALERTS.read_text())
    return rules


def hurried(rule: Rule, factor: int = FACTOR) -> Rule:
    """The same rule, with every duration divided."""
    windows = _WINDOW.sub(lambda match: _window(match, factor), rule["expr"])
    waits = {"for": shortened(rule["for"], factor)} if "for" in rule else {}
    return {**rule, "expr": windows, **waits}


def shortened(duration: str, factor: int) -> str:
    """`5m` divided by 60 is `5000ms`."""
    return f"{int(duration[:-1]) * _MILLISECONDS[duration[-1]] // factor}ms"


def _window(match: re.Match[str], factor: int) -> str:
    return "[" + ":".join(shortened(part, factor) for part in match.groups() if part) + "]"


def grouped(rules: list[Rule]) -> str:
    """A file of rules as Prometheus reads it."""
    return yaml.safe_dump({"groups": [{"name": "dynamo", "rules": rules}]}, width=1000)
