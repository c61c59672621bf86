"""The state machine of one process, driven by tables and by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from dynamo.cli.local.process_lifecycle import (
    Destroy,
    Effect,
    Event,
    Exited,
    Kill,
    Life,
    Policy,
    Ready,
    Spawn,
    Spawned,
    Start,
    State,
    Stop,
    Terminate,
    Timer,
    WakeAt,
    step,
)
from dynamo.runtime.process.backoff import Backoff


@dataclass
class World:
    """Carries effects out in a make-believe world: one process at a time, one alarm."""

    life: Life = Life()  # noqa: RUF009 - frozen
    now: float = 0.0
    alive: int | None = None
    alarm: float | None = None
    spawned: list[float] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)

    def feed(self, event: Event) -> None:
        self.life, effects = step(self.life, event, self.now)
        for effect in effects:
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn():
                assert self.alive is None, "two processes of one part"
                self.spawned.append(self.now)
                self.alive = len(self.spawned)
                self.feed(Spawned(self.alive))
            case WakeAt(when):
                self.alarm = when
            case Terminate():
                self.signals.append("term")
            case Destroy():
                self.signals.append("kill")

    def exits(self, code: int = 1, line: str = "") -> None:
        self.alive = None
        self.feed(Exited(code, line))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.alarm is not None and self.alarm <= self.now:
            self.alarm = None
            self.feed(Timer())

    def until_alarm(self) -> None:
        assert self.alarm is not None
        self.sleep(self.alarm - self.now)


def started(policy: Policy = Policy()) -> World:  # noqa: B008
    world = World(Life(policy))
    world.feed(Start())
    return world


def test_start_then_ready() -> None:
    """A process is starting until it says that it serves."""
    world = started()
    assert not world.life.settled
    world.feed(Ready())
    assert world.life.state is State.READY
    assert world.life.settled


def test_a_crash_is_started_again_with_growing_delays() -> None:
    """0.5, 1, 2 … seconds, up to the longest."""
    world = started(Policy(backoff=Backoff(0.5, 3.0)))
    delays = []
    for _ in range(5):
        world.feed(Ready())
        world.exits()
        assert world.life.state is State.BACKING_OFF
        before = world.now
        world.until_alarm()
        delays.append(world.spawned[-1] - before)
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert world.life.restarts == 5


def test_a_stable_time_resets_the_delay() -> None:
    """After a minute of serving, a crash is a first crash again."""
    world = started()
    for _ in range(4):
        world.feed(Ready())
        world.exits()
        world.until_alarm()
    world.feed(Ready())
    world.sleep(61)
    world.exits()
    assert world.life.delay == world.life.policy.backoff.first


def test_one_that_never_starts_is_given_up_with_its_last_line() -> None:
    """Four starts, then failed, and the reason is what it said last."""
    world = started()
    for _ in range(3):
        world.exits(1, "no such file")
        world.until_alarm()
    world.exits(1, "no such file")
    assert world.life.state is State.FAILED
    assert world.life.reason == "exited with code 1: no such file"
    assert world.alarm is None


def test_a_usage_error_is_not_tried_again() -> None:
    """Exit code 2 will not change by itself."""
    world = started()
    world.exits(2, "--engine: no such engine")
    assert world.life.state is State.FAILED


def test_the_same_error_twice_is_enough() -> None:
    """A process that explains itself the same way again needs no third try; a crash does."""
    world = started()
    world.exits(1, "Error: there is no model at 'x'")
    world.until_alarm()
    world.exits(1, "Error: there is no model at 'x'")
    assert world.life.state is State.FAILED
    crashing = started()
    crashing.exits(-9, "loading")
    crashing.until_alarm()
    crashing.exits(-9, "loading")
    assert crashing.life.state is State.BACKING_OFF


def test_one_that_served_once_is_never_given_up() -> None:
    """A worker that served before is worth every retry."""
    world = started()
    world.feed(Ready())
    for _ in range(20):
        world.exits(2)
        world.until_alarm()
    assert world.life.state is State.STARTING


def test_stop_is_polite_first_and_hard_after_the_grace() -> None:
    """SIGTERM, then SIGKILL when the grace is over."""
    world = started(Policy(grace=10))
    world.feed(Ready())
    world.feed(Stop())
    assert world.signals == ["term"]
    world.sleep(9)
    assert world.signals == ["term"]
    world.sleep(1)
    assert world.signals == ["term", "kill"]
    world.exits(-9)
    assert world.life.state is State.STOPPED


def test_stop_while_backing_off_starts_nothing() -> None:
    """Ctrl-C between a crash and the next start ends at once."""
    world = started()
    world.exits()
    world.feed(Stop())
    assert world.life.state is State.STOPPED
    world.sleep(100)
    assert len(world.spawned) == 1


def test_kill_is_hard_at_once() -> None:
    """The second Ctrl-C waits for nothing."""
    world = started()
    world.feed(Stop())
    world.feed(Kill())
    assert world.signals[-1] == "kill"


def test_stop_before_the_process_exists_reaches_it() -> None:
    """A stop that comes while the process is being made is sent once it is there."""
    life, effects = step(Life(), Start(), 0)
    assert effects == [WakeAt(None), Spawn()]
    life, effects = step(life, Stop(), 0)
    assert Terminate() not in effects
    life, effects = step(life, Spawned(7), 0)
    assert effects == [Terminate()]


class Action:
    """What can happen to a part, by name, for hypothesis."""

    names = st.lists(st.sampled_from(["start", "ready", "exit", "exit2", "sleep", "stop", "kill"]), max_size=40)


def happen(world: World, what: str) -> None:
    if what == "ready" and world.alive is not None:
        world.feed(Ready())
    elif what.startswith("exit") and world.alive is not None:
        world.exits(2 if what == "exit2" else 1, "why")
    elif what == "sleep":
        world.sleep(7.0)
    requests: dict[str, Event] = {"start": Start(), "stop": Stop(), "kill": Kill()}
    if what in requests:
        world.feed(requests[what])


@given(Action.names)
def test_state_and_process_always_agree(happenings: list[str]) -> None:
    """Never two processes; over means none; a living one can always be stopped, and then it is over."""
    world = World(replace(Life(), policy=Policy(grace=5)))
    for what in happenings:
        happen(world, what)
        running = world.life.state in (State.STARTING, State.READY, State.STOPPING)
        assert running == (world.alive is not None)
        assert (world.life.state is State.BACKING_OFF) <= (world.alarm is not None)
        assert (world.life.state in (State.FAILED, State.BACKING_OFF)) <= bool(world.life.reason)
    world.feed(Stop())
    if world.alive is not None:
        world.exits(0)
    assert world.life.over
    assert world.alarm is None
