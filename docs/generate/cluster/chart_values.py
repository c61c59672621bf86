"""A chart's values.yaml: the defaults, and the `# --` comments above them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]


def values(chart: Path) -> Json:
    """Return the chart's default values."""
    return dict(yaml.safe_load((chart / "values.yaml").read_text()))


def value_at(defaults: Json, path: str) -> Any:
    """Return the value of a path such as `operator.image.tag`."""
    value: Any = defaults
    for key in path.split("."):
        value = value[key]
    return value


def comments(chart: Path) -> dict[str, str]:
    """Return the comments by the path of the value below them."""
    texts: dict[str, str] = {}
    above, path = "", list[str]()
    for line in (chart / "values.yaml").read_text().splitlines():
        if comment := re.match(r" *# -- (.+)$", line):
            above = comment[1]
        elif key := re.match(r"( *)([A-Za-z][\w-]*):", line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if above:
                texts[".".join(path)] = above
            above = ""
    return texts
