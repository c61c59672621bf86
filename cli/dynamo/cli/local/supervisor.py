"""Keeps processes alive: feeds each one's state machine and carries out what it answers.

`process_lifecycle.py` decides, `processes.py` acts, this joins them and keeps each part's log.
Used by `executor.py`; everything happens on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from dynamo.cli.local import process_lifecycle
from dynamo.cli.local.log_files import LogFile, Severity, last_words, message, severity
from dynamo.cli.local.process_lifecycle import Life, Policy, State
from dynamo.cli.local.process_specs import PartSpec
from dynamo.cli.local.processes import Child, Watchdog, spawn
from dynamo.cli.local.state import PartState
from dynamo.runtime.process.tasks import TaskOwner

Probe = Callable[[], Awaitable[bool]]
OnLog = Callable[["Part", str, Severity], None]
OnChange = Callable[["Part"], None]

_log = logging.getLogger(__name__)

_PROBE_EVERY = 0.05
_REMEMBERED_LINES = 60
_DOING = 60
_GIST_CHARACTERS = 300


class Part:
    """One supervised process: what it should be, where it is in its life, what it said."""

    def __init__(self, spec: PartSpec, label: str, log: LogFile, probe: Probe | None) -> None:
        self.spec, self.label, self.log, self.probe = spec, label, log, probe
        self.life = Life(Policy(grace=spec.grace))
        self.child: Child | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.announced: dict[str, object] = {}
        self.last: deque[tuple[Severity, str]] = deque(maxlen=_REMEMBERED_LINES)
        self.started = 0.0

    @property
    def state(self) -> State:
        return self.life.state

    @property
    def seconds(self) -> float:
        """Return how long it has been in its state; once ready, how long that took."""
        if self.life.state is State.READY:
            return self.life.since - self.started
        return time.monotonic() - self.life.since

    @property
    def note(self) -> str:
        """Return why it doesn't serve, where it doesn't."""
        return self.life.reason if self.life.state in (State.BACKING_OFF, State.FAILED) else ""

    @property
    def doing(self) -> str:
        """Return what it said last, while it starts."""
        said = (message(text) for _, text in reversed(self.last))
        return next((text for text in said if text), "")[:_DOING] if self.life.state is State.STARTING else ""

    @property
    def last_words(self) -> str:
        """Return the line that most likely says why it ended."""
        return last_words(self.last, _GIST_CHARACTERS)


class Supervisor:
    """Owner of all parts of a run."""

    def __init__(self, environment: Mapping[str, str], folder: Path, on_log: OnLog, on_change: OnChange) -> None:
        self.parts: list[Part] = []
        self._watchdog: Watchdog
        self._environment = dict(environment)
        self._folder = folder
        self._on_log, self._on_change = on_log, on_change
        self._tasks = TaskOwner(_log)
        self._changed = asyncio.Event()

    async def open(self) -> None:
        """Start what outlives us for a moment, should we be killed."""
        self._watchdog = await Watchdog.start()

    def add(self, spec: PartSpec, label: str, log: LogFile, probe: Probe | None = None) -> Part:
        """Take a part in; `start` starts it."""
        part = Part(spec, label, log, probe)
        self.parts.append(part)
        return part

    def start(self, part: Part) -> None:
        """Start it, and again whenever it ends by itself."""
        self._feed(part, process_lifecycle.Start())

    def kill_all(self) -> None:
        """End everything now."""
        for part in self.parts:
            self._feed(part, process_lifecycle.Kill())

    async def stop(self, parts: Iterable[Part]) -> None:
        """End these in order of their own, and wait until they are gone."""
        ending = list(parts)
        for part in ending:
            self._feed(part, process_lifecycle.Stop())
        await self.until(lambda: all(part.life.over for part in ending), None)

    async def until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition over the parts; False when the time is over."""
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def next_change(self) -> None:
        """Wait until something changed since the last look."""
        await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """Have everybody who waits look again."""
        self._changed.set()

    async def close(self) -> None:
        """Kill what is left, wait for it, close the logs."""
        self.kill_all()
        while self._tasks:
            await self._tasks.ended()
        for part in self.parts:
            self._set_timer(part, None)
            part.log.close()
        await self._watchdog.stop()

    def _feed(self, part: Part, event: process_lifecycle.Event) -> None:
        before = part.life
        part.life, effects = process_lifecycle.step(before, event, time.monotonic())
        for effect in effects:
            self._carry_out(part, effect)
        if part.life != before:
            if part.life.state is not before.state:
                self._on_change(part)
            self._changed.set()

    def _carry_out(self, part: Part, effect: process_lifecycle.Effect) -> None:
        match effect:
            case process_lifecycle.Spawn():
                part.started = time.monotonic()
                self._own(self._run(part), f"run {part.label}")
            case process_lifecycle.Terminate() if part.child is not None:
                part.child.terminate()
            case process_lifecycle.Destroy() if part.child is not None:
                part.child.destroy()
            case process_lifecycle.WakeAt(when):
                self._set_timer(part, when)

    def _set_timer(self, part: Part, when: float | None) -> None:
        if part.timer is not None:
            part.timer.cancel()
        delay = None if when is None else max(0.0, when - time.monotonic())
        loop = asyncio.get_running_loop()
        part.timer = None if delay is None else loop.call_later(delay, self._feed, part, process_lifecycle.Timer())

    def _own(self, work: Awaitable[None], name: str) -> None:
        async def owned() -> None:
            await work

        self._tasks.start(owned(), name)

    async def _run(self, part: Part) -> None:
        """Run one process from its start to its end."""
        part.last.clear()
        part.announced = {}
        environment = {**self._environment, **dict(part.spec.environment)}

        def on_line(stream: str, text: str) -> None:
            self._line(part, stream, text)

        try:
            child = await spawn(part.spec.argv, environment, self._folder, self._watchdog, on_line)
        except OSError as error:
            self._feed(part, process_lifecycle.Exited(127, f"can't start {part.spec.argv[0]}: {error.strerror}"))
            return
        part.child = child
        self._feed(part, process_lifecycle.Spawned(child.pid))
        probing = asyncio.ensure_future(self._probe(part))
        try:
            code = await child.wait()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            part.child = None
            self._watchdog.forget(child.pid)
        self._feed(part, process_lifecycle.Exited(code, part.last_words))

    async def _probe(self, part: Part) -> None:
        if part.probe is None:
            return
        while part.life.state is State.STARTING:
            if await part.probe():
                self._feed(part, process_lifecycle.Ready())
            await asyncio.sleep(_PROBE_EVERY)

    def _line(self, part: Part, stream: str, text: str) -> None:
        if stream == "stdout" and text.startswith("ready "):
            with contextlib.suppress(ValueError):
                part.announced = dict(json.loads(text.removeprefix("ready ")))
            self._feed(part, process_lifecycle.Ready())
            return
        own = severity(text)
        level = own if own is not None else part.last[-1][0] if part.last else Severity.INFO
        if text.strip():
            part.last.append((level, text))
        part.log.write(text, datetime.now(UTC))
        self._on_log(part, text, own or Severity.INFO)


def part_state(part: Part) -> PartState:
    """Return what `dynamo ps` shows of a part now."""
    since = time.time() - (time.monotonic() - part.life.since)
    ports = {name: number for name, number in part.spec.ports if number}
    if isinstance(system := part.announced.get("system_port"), int):
        ports["system"] = system
    if http := urlsplit(str(part.announced.get("url", ""))).port:
        ports["http"] = http
    return PartState(
        name=part.spec.name,
        kind=part.spec.kind,
        component=part.spec.component,
        state=part.state.value,
        since=since,
        pid=part.life.pid,
        revision=part.spec.revision,
        restarts=part.life.restarts,
        reason=part.note,
        log=str(part.log.path),
        ports=ports,
        ended=part.life.ended,
        instance=f"{instance:014x}" if isinstance(instance := part.announced.get("instance"), int) else "",
    )
