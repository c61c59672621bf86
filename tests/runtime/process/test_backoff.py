"""Waits between tries: doubled, bounded, spread."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from dynamo.cli.batch import runner
from dynamo.frontend import supervisor
from dynamo.frontend.generation.retry_policy import Attempts, wait_before
from dynamo.frontend.routing import model_watcher
from dynamo.llm.hub.download import Patience
from dynamo.llm.kv_events import subscriber
from dynamo.runtime.errors import NoInstances
from dynamo.runtime.process.backoff import Backoff
from dynamo.runtime.transport import nats

PLAIN = Backoff(0.5, 30.0)


def test_the_first_wait_is_doubled_up_to_the_longest() -> None:
    """Each failure in a row doubles the wait, and none passes the bound."""
    assert [PLAIN.delay(failures) for failures in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_first_wait_may_be_above_the_longest() -> None:
    """The bound holds for the first wait, too."""
    assert Backoff(5.0, 2.0).delay(1) == 2.0


def test_no_failure_means_no_wait() -> None:
    """Nothing has failed: the first try doesn't wait."""
    assert PLAIN.delay(0) == 0.0


def test_a_million_failures_wait_the_longest() -> None:
    """A number that no float holds is never computed."""
    assert PLAIN.delay(10**6, 0.5) == 30.0


@pytest.mark.parametrize(("chance", "share"), [(0.0, 0.7), (0.5, 1.0), (0.999999, 1.3)])
def test_chance_moves_a_wait_by_at_most_the_jitter(chance: float, share: float) -> None:
    """Clients that lost the same server don't come back together."""
    assert Backoff(0.1, 2.0, 0.3).delay(3, chance) == pytest.approx(0.4 * share, rel=1e-4)


def test_the_next_wait_follows_from_the_last() -> None:
    """Who keeps the last wait and no count sees the same waits."""
    waits = list(accumulate(range(8), lambda last, _: PLAIN.after(last), initial=0.0))
    assert waits == [PLAIN.delay(failures) for failures in range(9)]


def test_waits_are_those_that_are_documented() -> None:
    """A change of a wait is meant, and is made here, too: NATS, KV events, models, processes, batches."""
    assert Backoff(0.1, 2.0, 0.3) == nats.BACKOFF
    assert Backoff(0.05, 10.0) == subscriber.PAUSES
    assert Backoff(5.0, 60.0) == model_watcher.RETRY_LOAD
    assert Backoff(0.5, 30.0) == supervisor.BACKOFF
    assert [runner.BACKOFF.delay(failures) for failures in range(1, runner.TRIES)] == [0.25, 0.5, 1, 2, 4, 8, 16]


def test_a_download_waits_as_the_hub_asks_or_twice_as_long_each_time() -> None:
    """The longer of the two, and never over its bound."""
    patience = Patience(9, 0.5)
    assert [patience.wait(asked) for asked in (None, 3.0, None, None, 1e9)] == [0.5, 3.0, 2.0, 4.0, 60.0]


def test_a_request_waits_up_to_a_second_for_another_worker() -> None:
    """Fifty milliseconds, doubled."""
    waits = [wait_before(NoInstances("all left"), Attempts(waits=waits), 0.0, None) for waits in range(7)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_supervised_process_that_ran_long_starts_anew_from_the_first_wait() -> None:
    """A minute is long."""
    assert [supervisor.next_backoff(4.0, ran_for) for ran_for in (59.9, 60.0)] == [8.0, 0.5]


def test_nats_servers_are_dialled_again_within_the_old_bounds() -> None:
    """From 70 to 130 percent of 0.1 s, then of twice that, up to 2 s."""
    dice = random.Random(1)
    for failures, wait in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0), start=1):
        assert 0.7 * wait <= nats.BACKOFF.delay(failures, dice.random()) <= 1.3 * wait
