"""Print what a worker's image needs from the Python index: `needs.py pyproject.toml EXTRA...`, a requirement a line.

`--locks FOLDER`: the lock of these extras there, with versions and hashes, if there is one; `locks.py` writes them.
`--variant cuda`: the engine's build for that device, where its authors publish one under a name of its own.
`pyproject.toml` stays the one place that says it; the answer, not that file, decides whether packages install anew.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

# Engines that are part of the worker itself; every other one is an extra of its own name.
BUILT_IN = ("mocker", "echo_core", "echo_full", "python")

# What operators of a cluster switch on for all pipelines, whatever their engine: traces.
IN_EVERY_IMAGE = ("otel",)

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


def lock_of(folder: Path, extras: list[str]) -> Path:
    """The file that locks what these extras need."""
    return folder / ("-".join(extra for extra in extras if extra not in BUILT_IN) + ".txt")


def main(words: list[str]) -> None:
    """Print the answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--locks", type=Path, help="folder with the locks")
    parser.add_argument("--variant", default="", help=f"build for a device: {', '.join(VARIANTS)}")
    parser.add_argument("project", type=Path, help="pyproject.toml")
    parser.add_argument("extras", nargs="+", metavar="EXTRA")
    asked = parser.parse_args(words)
    lines = needs(tomllib.loads(asked.project.read_text())["project"], [*asked.extras, *IN_EVERY_IMAGE])
    if asked.variant:
        lines = of_variant(lines, asked.variant)
    elif asked.locks and (lock := lock_of(asked.locks, asked.extras)).exists():
        lines = lock.read_text().splitlines()
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
