"""The life of one supervised process, as a pure state machine.

`executor.py` feeds it what happened (spawned, ready, exited, a timer, a request to stop)
and carries out what it answers. No process, clock or log in here: the time is an argument.

    starting -> ready -> (exit) -> backing-off -> starting …       failed: not tried again
    any -> stopping -> stopped
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dynamo.runtime.process.backoff import Backoff


class State(StrEnum):
    """State of a process: where it is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing-off"
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"


RESTARTS: Final = Backoff(0.5, 30.0)


@dataclass(frozen=True)
class Policy:
    """Policy of restarts: when to start again, and when to give up."""

    backoff: Backoff = RESTARTS
    stable_after: float = 60.0
    """Ready for this long, and the next crash starts from the first delay again."""
    attempts: int = 4
    """Starts in a row that never became ready, before giving up."""
    grace: float = 35.0
    """From the polite signal to the hard one."""
    hopeless_codes: frozenset[int] = frozenset({2})
    """Exit codes that say that another start would end alike (usage, bad model path)."""


# What happened.
@dataclass(frozen=True)
class Start:
    """Begin (or: begin now, backoff or not)."""


@dataclass(frozen=True)
class Spawned:
    """The process exists."""

    pid: int


@dataclass(frozen=True)
class Ready:
    """Event: it said that it serves."""


@dataclass(frozen=True)
class Exited:
    """Event: it ended; a negative code is a signal."""

    code: int
    last_line: str = ""


@dataclass(frozen=True)
class Timer:
    """The time asked for by `WakeAt` has come."""


@dataclass(frozen=True)
class Stop:
    """End it in order."""


@dataclass(frozen=True)
class Kill:
    """End it now."""


Event = Start | Spawned | Ready | Exited | Timer | Stop | Kill


# What to do.
@dataclass(frozen=True)
class Spawn:
    """Start the process."""


@dataclass(frozen=True)
class Terminate:
    """Send the polite signal."""


@dataclass(frozen=True)
class Destroy:
    """Send the hard signal, to the whole process group."""


@dataclass(frozen=True)
class WakeAt:
    """Send `Timer` at this time; replaces an earlier one, None forgets it."""

    when: float | None


Effect = Spawn | Terminate | Destroy | WakeAt


@dataclass(frozen=True)
class Life:
    """Life of one process: everything that is known of it."""

    policy: Policy = Policy()
    state: State = State.WAITING
    since: float = 0.0
    pid: int | None = None
    restarts: int = 0
    barren: int = 0
    """Starts in a row that never became ready."""
    delay: float = 0.0
    reason: str = ""
    """Why it isn't serving, for people."""
    ended: str = ""
    """Why the process before this one ended; stays when it serves again."""
    was_ready: bool = False

    @property
    def settled(self) -> bool:
        """Tell whether nothing more will come of it by itself soon: it serves, or it won't."""
        return self.state in (State.READY, State.FAILED, State.STOPPED)

    @property
    def over(self) -> bool:
        """Tell whether there is no process, and none to come."""
        return self.state in (State.FAILED, State.STOPPED)


def step(life: Life, event: Event, now: float) -> tuple[Life, list[Effect]]:
    """Return the life after `event`, and what to do."""
    match event:
        case Start():
            return _start(life, now)
        case Spawned(pid):
            return _spawned(life, pid)
        case Ready():
            return _ready(life, now)
        case Exited(code, last_line):
            return _exited(life, code, last_line, now)
        case Timer():
            return _timer(life, now)
        case Stop():
            return _stop(life, now)
        case Kill():
            return _kill(life, now)


def _to(life: Life, state: State, now: float, **changes: object) -> Life:
    return replace(life, state=state, since=now, **changes)  # type: ignore[arg-type]  # fields of Life, by name


def _start(life: Life, now: float) -> tuple[Life, list[Effect]]:
    if life.state not in (State.WAITING, State.BACKING_OFF):
        return life, []
    again = 1 if life.state is State.BACKING_OFF else 0
    return _to(life, State.STARTING, now, restarts=life.restarts + again), [WakeAt(None), Spawn()]


def _spawned(life: Life, pid: int) -> tuple[Life, list[Effect]]:
    effects: list[Effect] = [Terminate()] if life.state is State.STOPPING else []
    return replace(life, pid=pid), effects


def _ready(life: Life, now: float) -> tuple[Life, list[Effect]]:
    if life.state is not State.STARTING:
        return life, []
    return _to(life, State.READY, now, barren=0, reason="", was_ready=True), []


def _exited(life: Life, code: int, last_line: str, now: float) -> tuple[Life, list[Effect]]:
    if life.over:
        return replace(life, pid=None), []
    if life.state is State.STOPPING:
        return _to(life, State.STOPPED, now, pid=None), [WakeAt(None)]
    served = life.state is State.READY
    reason = describe_exit(code, last_line)
    barren = 0 if served else life.barren + 1
    if not life.was_ready and _hopeless(life, barren, code, last_line):
        return _to(life, State.FAILED, now, pid=None, barren=barren, reason=reason, ended=reason), [WakeAt(None)]
    stable = served and now - life.since >= life.policy.stable_after
    delay = life.policy.backoff.after(0.0 if stable else life.delay)
    after = _to(life, State.BACKING_OFF, now, pid=None, barren=barren, delay=delay, reason=reason, ended=reason)
    return after, [WakeAt(now + delay)]


def _hopeless(life: Life, barren: int, code: int, last_line: str) -> bool:
    """Tell whether another start would end alike: tried often enough, wrong usage, or the same plain `Error.

    …` again.
    """
    explained = last_line.startswith("Error: ") and describe_exit(code, last_line) == life.reason
    return barren >= life.policy.attempts or code in life.policy.hopeless_codes or explained


def _timer(life: Life, now: float) -> tuple[Life, list[Effect]]:
    if life.state is State.BACKING_OFF:
        return _start(life, now)
    if life.state is State.STOPPING:
        return life, [Destroy()]
    return life, []


def _stop(life: Life, now: float) -> tuple[Life, list[Effect]]:
    if life.over or life.state is State.STOPPING:
        return life, []
    if life.state in (State.WAITING, State.BACKING_OFF):
        return _to(life, State.STOPPED, now), [WakeAt(None)]
    polite: list[Effect] = [Terminate()] if life.pid is not None else []
    return _to(life, State.STOPPING, now), [*polite, WakeAt(now + life.policy.grace)]


def _kill(life: Life, now: float) -> tuple[Life, list[Effect]]:
    after, effects = _stop(life, now)
    if after.over:
        return after, effects
    return after, [Destroy(), WakeAt(now + 1.0)]


def describe_exit(code: int, last_line: str) -> str:
    """Say `exited with code 1: …`, `killed by signal 9 (SIGKILL)`."""
    how = f"killed by signal {-code}{_signal_name(-code)}" if code < 0 else f"exited with code {code}"
    return f"{how}: {last_line}" if last_line else how


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # real-time signals have none
        return ""
