"""Writes the reference of the charts' values out of values.yaml (defaults, comments) and values.schema.json (types)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from docs.generate.cluster.chart_values import Json, comments, value_at, values
from docs.generate.markdown import CELL, code, page, prose, table

CHARTS: Final = Path(__file__).parents[3] / "charts"
HEAD: Final = """# Helm values

Made from the charts' `values.yaml` and `values.schema.json` by `make generate`; don't edit it by hand.

`dynamo-platform` installs the operator, etcd and NATS; `dynamo-pipeline` makes pipelines. Helm refuses unknown values
and values of another type before it installs anything. Set them with `--set NAME=VALUE` or in a file: `--values FILE`.
"""
_ABOUT: Final = {
    "dynamo-platform": "The operator, with an etcd and a NATS for the pipelines' workers.",
    "dynamo-pipeline": "One or more `DynamoPipeline` objects. "
    "`pipelines.NAME.spec` has the fields of the [DynamoPipeline reference](dynamopipeline.md#spec).",
}
_LONG: Final = 60
"""Characters of a default in a cell; longer ones stand in a section of their own."""


class Value(NamedTuple):
    """A value that a user can set."""

    path: str
    kind: str
    default: Any
    text: str

    @property
    def is_short(self) -> bool:
        """Tell whether it fits into a row."""
        return len(self.text) <= CELL and len(json.dumps(self.default)) <= _LONG


def render() -> str:
    """Write the whole page."""
    parts = [HEAD]
    for chart, about in _ABOUT.items():
        parts += [f"## {chart}", prose(about)]
        groups: dict[str, list[Value]] = {}
        for value in described(CHARTS / chart):
            first = value.path.partition(".")[0]
            groups.setdefault(first if first != value.path else "", []).append(value)
        for group, members in groups.items():
            parts += _group(chart, group, members)
    return page(parts)


def described(chart: Path) -> Iterator[Value]:
    """Yield the values of a chart in the order of its file."""
    schema, defaults = json.loads((chart / "values.schema.json").read_text()), values(chart)
    for path, text in comments(chart).items():
        node = schema
        for key in path.split("."):
            node = node.get("properties", {}).get(key, {})
        yield Value(path, _kind(node), value_at(defaults, path), text)


def _kind(node: Json) -> str:
    kinds = node.get("type", "")
    named = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    if "enum" in node:
        return ", ".join(code(value) for value in node["enum"] if value is not None)
    if named == ["array"]:
        return f"list of {_kind(node.get('items', {})) or 'objects'}s".replace("ss", "s")
    return " or ".join(named)


def _group(chart: str, name: str, members: list[Value]) -> Iterator[str]:
    yield f"### {chart}: {name}" if name else ""
    short = [value for value in members if value.is_short]
    if short:
        yield table(("value", "type", "default", "meaning"), (_row(value) for value in short))
    for value in members:
        if not value.is_short:
            yield from _section(value)


def _row(value: Value) -> tuple[str, ...]:
    return code(value.path), value.kind, code(json.dumps(value.default)), value.text


def _section(value: Value) -> Iterator[str]:
    yield f"#### {value.path}"
    shown = json.dumps(value.default)
    inline = f", default {code(shown)}" if len(shown) <= _LONG else ""
    yield prose(f"{value.kind[:1].upper()}{value.kind[1:]}{inline}. {value.text}")
    if not inline:
        yield f"Default:\n\n```yaml\n{yaml.safe_dump(value.default, sort_keys=False, width=100).rstrip()}\n```"
