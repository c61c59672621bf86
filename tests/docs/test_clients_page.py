"""The page of clients says the versions that `make test-clients` installs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
LANE: Final = ROOT / "tests_clients"


def test_versions_of_clients() -> None:
    """Each version of the page is the one that is pinned for that client, and no pinned client is missing."""
    page = (ROOT / "docs/how-to/program/clients-tried.md").read_text()
    rows = re.findall(r"^\| `([^`]+)`(?: \((\w+)\))? \| (\S+) \|", page, re.MULTILINE)
    pinned: dict[str, set[str]] = {}
    wanted = set()
    for lock in LANE.rglob("locks/*.txt"):
        lines = lock.read_text().splitlines()
        for name, version in (line.split(" ")[0].split("==") for line in lines if "==" in line):
            pinned.setdefault(name, set()).add(version)
        asked = lock.with_suffix(".in").read_text().split()
        wanted |= {re.sub(r"\[.*", "", name) for name in asked}
    node = json.loads((LANE / "node" / "package.json").read_text())["dependencies"]
    for name, version in node.items():
        pinned.setdefault(name, set()).add(version)
    for line in (LANE / "go" / "go.mod").read_text().splitlines():
        if module := re.search(r"github\.com/\S+?/([\w-]+)(?:/v\d+)? v(\S+)", line):
            pinned.setdefault(module[1], set()).add(module[2])
    wrong = [(name, version) for name, _, version in rows if version not in pinned.get(name, ())]
    assert wrong == []
    assert wanted | {"ai", "openai"} <= {name for name, _, _ in rows}
