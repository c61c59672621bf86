"""Print what an image needs from the Python index: `needs.py [--alone] pyproject.toml EXTRA...`, a requirement a line.

`--variant cuda`: the engine's build for that device, where its authors publish one under a name of its own.
`--alone`: only what the extras name, for a part that imports nothing of the runtime.
`pyproject.toml` stays the one place that says it; the answer, not that file, decides whether packages install anew.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

# Engines that are part of the worker itself; every other one is an extra of its own name.
BUILT_IN = ("mocker", "echo_core", "echo_full", "python")

# Wheels that bring the same modules under another name.
VARIANTS = {"cuda": {"mistralrs": "mistralrs-cuda"}}


def of_variant(lines: list[str], variant: str) -> list[str]:
    """The requirements with the names of the variant's wheels; the bounds stay."""
    if variant not in VARIANTS:
        raise SystemExit(f"{variant} is no variant: use {', '.join(VARIANTS)}, or leave it out")
    names = VARIANTS[variant]
    return sorted(re.sub(r"^[\w.-]+", lambda found: names.get(found[0], found[0]), line) for line in lines)


def needs(project: dict[str, Any], extras: list[str], alone: bool = False) -> list[str]:
    """The requirements of `extras`, and unless `alone` the project's own, sorted; `SystemExit` names the known extras.

    An extra's requirement of the project itself is left out: it brings the command line, which an image is without.
    """
    known = project["optional-dependencies"]
    wanted = [extra for extra in extras if extra not in BUILT_IN]
    for extra in wanted:
        if extra not in known:
            raise SystemExit(f"{extra} is no engine or extra: use one of {', '.join([*BUILT_IN, *sorted(known)])}")
    own = [] if alone else project["dependencies"]
    lines = {*own, *(line for extra in wanted for line in known[extra])}
    itself = re.compile(rf"{re.escape(project['name'])}\b")
    return sorted(line for line in lines if not itself.match(line))


def main(words: list[str]) -> None:
    """Print the answer."""
    variant = words[words.index("--variant") + 1] if "--variant" in words else ""
    alone, (path, *extras) = "--alone" in words, [w for w in words if w not in ("--alone", "--variant", variant)]
    project = tomllib.loads(Path(path).read_text())["project"]
    lines = needs(project, extras, alone)
    sys.stdout.write("\n".join(of_variant(lines, variant) if variant else lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
