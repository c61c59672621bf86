"""Print what an image needs from the Python index: `needs.py pyproject.toml EXTRA...`, one requirement a line.

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


def needs(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The project's own requirements and those of `extras`, sorted; `SystemExit` names the extras that there are.

    An extra's requirement of the project itself is left out: it brings the command line, which an image is without.
    """
    known = project["optional-dependencies"]
    wanted = [extra for extra in extras if extra not in BUILT_IN]
    for extra in wanted:
        if extra not in known:
            raise SystemExit(f"{extra} is no engine or extra: use one of {', '.join([*BUILT_IN, *sorted(known)])}")
    lines = {*project["dependencies"], *(line for extra in wanted for line in known[extra])}
    itself = re.compile(rf"{re.escape(project['name'])}\b")
    return sorted(line for line in lines if not itself.match(line))


if __name__ == "__main__":
    sys.stdout.write("\n".join(needs(tomllib.loads(Path(sys.argv[1]).read_text())["project"], sys.argv[2:])) + "\n")
