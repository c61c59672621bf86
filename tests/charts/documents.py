"""The charts' own files, read once for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from docs.generate.cluster.chart_values import comments as comments
from docs.generate.cluster.chart_values import value_at
from docs.generate.cluster.chart_values import values as values
from tests.operator.golden import Golden

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "charts/dynamo-platform"
PIPELINE = ROOT / "charts/dynamo-pipeline"
CHARTS = [PLATFORM, PIPELINE]


def golden(case: str) -> Golden:
    """What helm makes of the platform with a set of values."""
    return Golden(Path(__file__).parent / "golden", case, of="default" if case in ("per-namespace", "ha") else "")


def schema(chart: Path) -> dict[str, Any]:
    """What the chart lets values be."""
    return dict(json.loads((chart / "values.schema.json").read_text()))


def head(chart: Path) -> dict[str, Any]:
    """Chart.yaml."""
    return dict(yaml.safe_load((chart / "Chart.yaml").read_text()))


def leaves(value: Any, documented: dict[str, str], path: str = "") -> Iterator[str]:
    """Paths of values that a user sets: what has a comment is one, whatever it holds."""
    if path in documented or not isinstance(value, dict) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from leaves(inner, documented, f"{path}.{key}" if path else key)


def property_at(chart: Path, path: str) -> dict[str, Any]:
    """The part of the schema that speaks of one value."""
    properties = schema(chart)
    for key in path.split("."):
        properties = properties["properties"][key]
    return properties


def values_table(chart: Path) -> str:
    """The table of values for the chart's README, as helm-docs would write it."""
    known, lines = comments(chart), ["| value | default | |", "|---|---|---|"]
    defaults = values(chart)
    for path in known:
        default = value_at(defaults, path)
        text = known[path].replace("|", "\\|")
        lines.append(f"| `{path}` | `{json.dumps(default)}` | {text} |")
    return "\n".join(lines) + "\n"
