"""The charts' own files, read once for the tests of this folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.golden import Golden

ROOT = Path(__file__).parents[2]
PLATFORM = ROOT / "charts/dynamo-platform"
PIPELINE = ROOT / "charts/dynamo-pipeline"
CHARTS = [PLATFORM, PIPELINE]


def golden(case: str) -> Golden:
    """What helm makes of the platform with a set of values."""
    return Golden(Path(__file__).parent / "golden", case, of="default" if case == "per-namespace" else "")


def values(chart: Path) -> dict[str, Any]:
    """The chart's default values."""
    return dict(yaml.safe_load((chart / "values.yaml").read_text()))


def schema(chart: Path) -> dict[str, Any]:
    """What the chart lets values be."""
    return dict(json.loads((chart / "values.schema.json").read_text()))


def head(chart: Path) -> dict[str, Any]:
    """Chart.yaml."""
    return dict(yaml.safe_load((chart / "Chart.yaml").read_text()))


def comments(chart: Path) -> dict[str, str]:
    """The `# --` comments of values.yaml by the path of the value below them."""
    values: dict[str, str] = {}
    above, path = "", list[str]()
    for line in (chart / "values.yaml").read_text().splitlines():
        if comment := re.match(r" *# -- (.+)$", line):
            above = comment[1]
        elif key := re.match(r"( *)([A-Za-z][\w-]*):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if above:
                values[".".join(path)] = above
            above = ""
    return values


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
    known, lines, whole = comments(chart), ["| value | default | |", "|---|---|---|"], values(chart)
    for path in known:
        default = whole
        for key in path.split("."):
            default = default[key]
        text = known[path].replace("|", "\\|")
        lines.append(f"| `{path}` | `{json.dumps(default)}` | {text} |")
    return "\n".join(lines) + "\n"
