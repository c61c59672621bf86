"""When another attempt is made, and after how long: pure policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.frontend.generation.retry_policy import (
    MAX_ATTEMPTS,
    MAX_DEATHS,
    MAX_LOSSES,
    RETRY_WINDOW_SECONDS,
    Attempts,
    died,
    is_loss,
    may_go_on,
    patience,
    wait_before,
)
from dynamo.runtime.errors import (
    CannotConnect,
    CapacityExceeded,
    ConnectionTimeout,
    DeadlineExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    EngineShutdown,
    InvalidArgument,
    NoInstances,
    StreamIncomplete,
    WorkerUnavailable,
)

REFUSED = [CannotConnect, CapacityExceeded, ConnectionTimeout, NoInstances, WorkerUnavailable]
LOST = [Disconnected, EngineShutdown, StreamIncomplete]
RETRYABLE = [*REFUSED, *LOST]
FINAL = [EngineError, InvalidArgument, DeadlineExceeded]


@pytest.mark.parametrize("kind", RETRYABLE)
def test_before_the_first_token_retryable_errors_go_on(kind: type[DynamoException]) -> None:
    """Nothing was promised yet: other instances are tried, a bounded number of times."""
    assert may_go_on(kind(), Attempts(made=1))
    assert not may_go_on(kind(), Attempts(made=MAX_ATTEMPTS, losses=MAX_LOSSES))


def test_two_workers_may_die_with_it() -> None:
    """Before its first token; afterwards the limit for migrations holds, whatever died before."""
    assert may_go_on(Disconnected(), Attempts(made=1))
    assert not may_go_on(Disconnected(), Attempts(made=2, deaths=MAX_DEATHS - 1))
    assert may_go_on(EngineShutdown(), Attempts(made=2, deaths=MAX_DEATHS - 1))
    assert may_go_on(Disconnected(), Attempts(produced=True, deaths=MAX_DEATHS, migrations_left=1))
    assert [kind for kind in RETRYABLE if died(kind())] == [Disconnected]


@pytest.mark.parametrize("kind", RETRYABLE)
def test_after_it_only_migration_goes_on(kind: type[DynamoException]) -> None:
    """With tokens out, only what the migration limit allows, whatever broke the stream off."""
    broken = Attempts(made=1, produced=True, under_way=True)
    assert is_loss(kind(), broken)
    assert not may_go_on(kind(), broken)
    assert may_go_on(kind(), Attempts(made=1, produced=True, under_way=True, migrations_left=1))


@pytest.mark.parametrize("kind", RETRYABLE)
def test_refusals_of_a_migration_are_free(kind: type[DynamoException]) -> None:
    """A worker that never took the rest costs no migration; one that was lost with it does."""
    on_its_way = Attempts(made=1, produced=True)
    assert is_loss(kind(), on_its_way) == (kind in LOST)
    assert may_go_on(kind(), on_its_way) == (kind in REFUSED)


@pytest.mark.parametrize("kind", FINAL)
def test_final_errors_end_it(kind: type[DynamoException]) -> None:
    """What fails everywhere is not tried elsewhere."""
    assert not may_go_on(kind(), Attempts(migrations_left=5))


def test_full_everywhere_is_not_waited_for() -> None:
    """How long to wait for room is the client's decision."""
    assert wait_before(CapacityExceeded(), Attempts(), 0.0, None) is None
    assert wait_before(CapacityExceeded(), Attempts(produced=True), 0.0, None), "half an answer is worth a wait"


def test_who_lost_the_only_worker_waits_as_long_as_who_comes_after() -> None:
    """With workerWaitTimeoutSeconds, also where no instance is left; without, it ends at once."""
    assert wait_before(CannotConnect(), Attempts(), 0.0, None, patience(False, 0.0)) is None
    assert wait_before(CannotConnect(), Attempts(), 25.0, None, patience(False, 30.0))
    assert wait_before(CannotConnect(), Attempts(), 30.0, None, patience(False, 30.0)) is None
    assert wait_before(CannotConnect(), Attempts(), 25.0, 0.01, patience(False, 30.0)) is None
    assert patience(True, 0.0) == RETRY_WINDOW_SECONDS
    assert patience(True, 30.0) == 30.0


@given(st.integers(0, 50), st.floats(0, 100), st.none() | st.floats(0, 100))
def test_waits_are_bounded(waits: int, elapsed: float, left: float | None) -> None:
    """A wait is positive, at most a second, and never reaches past the window or the request's time limit."""
    wait = wait_before(CannotConnect(), Attempts(waits=waits), elapsed, left)
    if wait is not None:
        assert 0 < wait <= 1
        assert elapsed + wait < RETRY_WINDOW_SECONDS
        assert left is None or wait < left
