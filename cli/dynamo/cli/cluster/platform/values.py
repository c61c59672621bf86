"""Values for the chart as helm's own flags give them: `--values FILE`, `--set a.b=c`, `--set-string`.

pyhelm3 hands helm the result on standard input, so that no value stands in a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dynamo.cli.cluster.errors import ClusterError

Values = dict[str, Any]
_INDEX: Final = re.compile(r"\[(\d{1,4})\]")
_WORDS: Final = {"true": True, "false": False, "null": None}
_MOST_ITEMS: Final = 1000


def merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> Values:
    """Merge maps, and replace everything else; null stays, for helm takes it as `remove the default`."""
    result = dict(base)
    for key, value in more.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merge(before, value) if both else value  # type: ignore[arg-type]
    return result


def value_at(values: Mapping[str, Any], *keys: str) -> Any:
    """Return the value at a path; None where there is none."""
    place: Any = values
    for key in keys:
        place = place.get(key) if isinstance(place, Mapping) else None
    return place


def read_files(files: Iterable[Path]) -> Values:
    """Read all files, later ones over earlier ones; `-` is standard input."""
    import sys

    import yaml

    result: Values = {}
    for file in files:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
            values = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ClusterError(f"{file} can't be read as values: {' '.join(str(error).split())}") from None
        if values is not None and not isinstance(values, dict):
            raise ClusterError(f"{file} holds no values: a map like `operator: {{replicaCount: 2}}` is wanted")
        result = merge(result, values or {})
    return result


def set_all(base: Mapping[str, Any], assignments: Iterable[tuple[str, bool]]) -> Values:
    """Set `a.b=c,d[0]=e` over values; the flag says that what is set stays text."""
    import copy

    result = copy.deepcopy(dict(base))
    for text, as_text in assignments:
        for assignment in split(text, ","):
            _set(result, assignment, as_text, text)
    return result


def split(text: str, at: str) -> list[str]:
    """Split at a character that is neither escaped nor in braces; escapes stay."""
    parts, depth, begin, i = [], 0, 0, 0
    while i < len(text):
        if text[i] == "\\":
            i += 1
        elif text[i] in "{}":
            depth += 1 if text[i] == "{" else -1
        elif text[i] == at and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
        i += 1
    return [*parts, text[begin:]]


def _set(values: Values, assignment: str, as_text: bool, whole: str) -> None:
    key, equals, value = _first(assignment)
    if not equals or not key:
        raise ClusterError(f"--set {whole}: {assignment!r} has no `=`: write key=value, with a comma in a value as \\,")
    steps = [step for part in split(key, ".") for step in _steps(part, whole)]
    _place(values, steps, _value(value, as_text), whole)


def _first(assignment: str) -> tuple[str, str, str]:
    parts = split(assignment, "=")
    return parts[0], "=" if len(parts) > 1 else "", "=".join(parts[1:])


def _steps(part: str, whole: str) -> list[str | int]:
    match = re.fullmatch(r"((?:\\.|[^\[\\])*)((?:\[\d{1,4}\])*)", part)
    if match is None or not (match[1] or match[2]):
        raise ClusterError(f"--set {whole}: {part!r} is no key: write a.b=c or a[0]=c")
    indices: list[str | int] = [int(number) for number in _INDEX.findall(match[2])]
    if any(isinstance(i, int) and i >= _MOST_ITEMS for i in indices):
        raise ClusterError(f"--set {whole}: a list has at most {_MOST_ITEMS} items here")
    return [*([_plain(match[1])] if match[1] else []), *indices]


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _value(text: str, as_text: bool) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return [_value(item, as_text) for item in split(text[1:-1], ",")]
    plain = _plain(text)
    if as_text:
        return plain
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if plain == "0" or re.fullmatch(r"[+-]\d{1,19}|[1-9]\d{0,18}", plain):
        return int(plain) if -(2**63) <= int(plain) < 2**63 else plain
    return plain


def _place(where: Any, steps: Sequence[str | int], value: Any, whole: str) -> None:
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        fresh: Any = value if following is None else ([] if isinstance(following, int) else {})
        if isinstance(step, int):
            if not isinstance(where, list):
                raise ClusterError(f"--set {whole}: [{step}] asks for a list, and there is none")
            where += [None] * (step + 1 - len(where))
        elif not isinstance(where, dict):
            raise ClusterError(f"--set {whole}: {step} asks for a map, and there is none")
        before = where[step] if isinstance(step, int) else where.get(step)
        if following is None or not isinstance(before, dict | list):
            where[step] = fresh
        where = where[step]
