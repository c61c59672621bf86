"""Watches a site while something hostile is done to it, beside a like one that nobody touches: `Watch`.

    async with Watch(site, control) as watch:
        mark = await watch.begin()
        ...
        seen = await watch.end(mark, answers)
        assert violations(seen) == []

What a `Part` is watched for lies in /proc: memory (with the kernel's own peak), descriptors; and its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from tests.fuzz.findings import ROOT, environment
from tests.fuzz.judging import Answer, Memory, Seen, Site, Wait

EVERY: Final = 0.004
SETTLE: Final = 10.0
"""Seconds within which memory has come back."""
_NEAR: Final = 20.0
"""Megabytes: so near to its beginning is back."""
_FEW: Final = 4
_LINE: Final = 1 << 26
_SHOWN: Final = 1 << 20


class Part(Protocol):
    """A process of a site."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def code(self) -> int | None: ...

    @property
    def log(self) -> Path: ...


class Watched(Protocol):
    """A site: where its frontend listens, what is asked as others' streams, and its processes."""

    @property
    def port(self) -> int: ...

    @property
    def body(self) -> dict[str, Any]: ...

    @property
    def parts(self) -> Sequence[Part]: ...


@dataclass(frozen=True)
class Mark:
    """How things stood."""

    megabytes: dict[str, float]
    files: dict[str, int]
    logs: dict[str, int]


class Watch:
    """One probe over both sites."""

    def __init__(self, site: Watched, control: Watched, *, streams: int = 2, every: float = EVERY) -> None:
        """`every`: seconds from one question of an idle client to its next."""
        self._site, self._control, self._streams, self._every = site, control, streams, every
        self._probe: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        table = {name: _told(site, self._streams, self._every) for name, site in self._both}
        self._probe = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.fuzz.probe", json.dumps(table), limit=_LINE, cwd=ROOT,
            env=environment(), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await self._warm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._probe is not None:
            with contextlib.suppress(ProcessLookupError):
                self._probe.kill()
            await self._probe.wait()

    @property
    def _both(self) -> Iterable[tuple[str, Watched]]:
        return (("watched", self._site), ("control", self._control))

    async def begin(self) -> Mark:
        """Forget what was; what is seen from now on counts."""
        await self._take()
        parts = [part for part in self._site.parts if part.code is None]
        for part in parts:
            _forget_peak(part.pid)
        return Mark(
            {part.name: resident(part.pid) for part in parts}, {part.name: files(part.pid) for part in parts},
            {part.name: _size(part.log) for part in parts},
        )  # fmt: skip

    async def end(self, mark: Mark, answers: Sequence[Answer] = (), *, settle: float = SETTLE) -> Seen:
        """Tell what was seen since; waits up to `settle` seconds for memory and files to come back."""
        answer = await self._take()
        alive = [part for part in self._site.parts if part.code is None and part.name in mark.megabytes]
        peaks = {part.name: peak(part.pid) for part in alive}
        await _settled(alive, mark, settle)
        memory = {part.name: Memory(mark.megabytes[part.name], peaks[part.name], resident(part.pid)) for part in alive}
        return Seen(
            _seen(answer["watched"]), _seen(answer["control"]), memory,
            {part.name: (mark.files[part.name], files(part.pid)) for part in alive},
            {part.name: _since(part.log, mark.logs.get(part.name, 0)) for part in self._site.parts},
            [f"{part.name}, exit code {part.code}" for part in self._site.parts
             if part.code is not None and part.name in mark.megabytes],
            [*answers],
        )  # fmt: skip

    async def _warm(self) -> None:
        """Wait until each stream of both sites runs."""
        deadline = time.monotonic() + 60
        waiting = {"watched", "control"}
        while waiting:
            answer = await self._take()
            waiting -= {name for name in waiting if answer[name]["chunks"] and answer[name]["asked"]}
            if time.monotonic() > deadline:
                raise TimeoutError(f"no stream runs at {waiting}: {answer}")
            await asyncio.sleep(0.1)

    async def _take(self) -> dict[str, Any]:
        assert self._probe is not None
        assert self._probe.stdin is not None
        assert self._probe.stdout is not None
        self._probe.stdin.write(b"take\n")
        line = await asyncio.wait_for(self._probe.stdout.readline(), 60)
        document: dict[str, Any] = json.loads(line)
        return document


def _told(site: Watched, streams: int, every: float) -> dict[str, Any]:
    return {"port": site.port, "body": site.body, "streams": streams, "every": every}


def _seen(fields: dict[str, Any]) -> Site:
    live, gaps = ([Wait(at, seconds) for at, seconds in fields[kind]] for kind in ("live", "gaps"))
    return Site(live, gaps, fields["failures"])


async def _settled(parts: Iterable[Part], mark: Mark, within: float) -> None:
    """Wait until memory and descriptors are near to what they were; no longer than that."""
    deadline = time.monotonic() + within
    while any(
        resident(part.pid) > mark.megabytes[part.name] + _NEAR or files(part.pid) > mark.files[part.name] + _FEW
        for part in parts
    ):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.2)


def _status(pid: int, field: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it ended just now
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


def resident(pid: int) -> float:
    """Return the megabytes that a process has in memory."""
    return _status(pid, "VmRSS:")


def peak(pid: int) -> float:
    """Return the most megabytes that it had since `Watch.begin`."""
    return _status(pid, "VmHWM:")


def _forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def files(pid: int) -> int:
    """Return how many descriptors it has."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _since(path: Path, offset: int) -> str:
    """What was written behind `offset`, without a last line that isn't whole; of very much, its size still shows."""
    if _size(path) <= offset:
        return ""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(_SHOWN)
        left = _size(path) - file.tell()
    text = data.decode("utf-8", "replace")
    return text + "x" * left if left else text[: text.rfind("\n") + 1]
