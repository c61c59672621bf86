"""Which process runs which test: xdist's scheduler, by groups that the processes write down when they have collected.

xdist's own groups (3.8) are endings of node ids, which pytest 9.2 does not take from it any more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

FILE = "groups.json"


def write(config: pytest.Config, groups: Mapping[str, str]) -> None:
    """By node id, for the one that distributes; every process writes the same. Without processes there is none."""
    if not hasattr(config, "workerinput"):
        return
    folder = _temporary(config)
    part = folder / FILE
    part.write_text(json.dumps(dict(groups)))
    os.replace(part, folder.parent / FILE)


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """Tests of one group run in one process, in the order of their collection."""

    @cached_property
    def _groups(self) -> dict[str, str]:
        return dict(json.loads((_temporary(self.config) / FILE).read_text()))

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]


def _temporary(config: Any) -> Path:
    found: Path = config._tmp_path_factory.getbasetemp()
    return found
