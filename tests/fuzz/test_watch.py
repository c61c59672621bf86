"""The watch sees what was done: a played site does each harm, and one beside it does none."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures_etcd import free_ports
from tests.fuzz import played
from tests.fuzz.judging import FORGED, Bars, Seen, violations
from tests.fuzz.site import Running
from tests.fuzz.watch import Watch
from tests.processes import Process
from tests.system.conftest import eventually

pytestmark = [pytest.mark.processes(seconds=25), pytest.mark.timeout(180)]
LOOSE = Bars(live=1.5, pause=1.5)
"""So that a busy machine isn't taken for harm."""


@dataclass
class Played:
    """Such a site."""

    port: int
    parts: list[Running]
    body: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def site(folder: Path, name: str) -> Iterator[Played]:
    (port,) = free_ports(1)
    process = Process(name, [sys.executable, played.__file__, str(port)], folder)
    try:
        eventually("it listens", lambda: httpx.get(f"http://127.0.0.1:{port}/live", timeout=5).is_success)
        yield Played(port, [Running("frontend", process)])
    finally:
        process.kill()


def seen_of(folder: Path, asked: str, settle: float = 0.0) -> Seen:
    """What the watch saw while the site was asked to do this."""

    async def main(watched: Played, control: Played) -> Seen:
        async with Watch(watched, control, streams=1) as watch, httpx.AsyncClient(timeout=30) as client:
            mark = await watch.begin()
            with contextlib.suppress(httpx.HTTPError):
                await client.post(f"http://127.0.0.1:{watched.port}/do?{asked}")
            if asked.startswith("exit"):  # its connections end before it does
                await asyncio.to_thread(watched.parts[0].process.popen.wait, 30)
            return await watch.end(mark, settle=settle)

    with site(folder, "watched") as watched, site(folder, "control") as control:
        return asyncio.run(main(watched, control))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("stall=5", {"/live waited", "a stream paused"}),
        ("grow=150", {"frontend rose by"}),
        ("keep=200", {"frontend rose by", "frontend kept"}),
        ("open=50", {"frontend has"}),
        (
            f"say=x%0A{FORGED.replace(' ', '+')}",
            {"frontend's log: a client wrote", "frontend's log: a line without a head"},
        ),
        ("exit=3", {"a process ended: frontend, exit code 3"}),
    ],
)
def test_each_harm_is_seen(tmp_path: Path, asked: str, says: set[str]) -> None:
    """A stall of the loop, memory that comes back or stays, files, a forged line, an end: that, and nothing else."""
    sentences = violations(seen_of(tmp_path, asked), LOOSE)
    missing = {said for said in says if not any(sentence.startswith(said) for sentence in sentences)}
    also = ("another client failed",) if "exit" in asked else ()
    more = [sentence for sentence in sentences if not sentence.startswith((*says, *also))]
    assert (missing, more) == (set(), [])


def test_no_harm_is_none(tmp_path: Path) -> None:
    """A site that is asked for nothing breaks no bar, and its streams were read meanwhile."""
    assert violations(seen_of(tmp_path, ""), LOOSE) == []
