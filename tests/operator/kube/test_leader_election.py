"""Who leads: a lease is judged by our own clock, and no two lead at the same time."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dynamo.operator.kube.leader_election import LeaseObservation, claimed, is_leading, may_take, observed, released

WALL = datetime(2026, 11, 21, tzinfo=UTC)


def test_a_lease_is_judged_by_our_own_clock() -> None:
    """A holder that stops renewing is replaced after fifteen seconds of seeing so, whatever its clock says."""
    held = claimed(None, "other", WALL, "ns", "l")
    observation = observed(held, LeaseObservation(), 100.0)
    assert not may_take(held, observation, "me", 114.9)
    assert may_take(held, observed(held, observation, 115.0), "me", 115.0)
    renewed = claimed(held, "other", WALL.replace(second=2), "ns", "l")
    assert not may_take(renewed, observed(renewed, observation, 115.0), "me", 116.0)


def test_a_lease_is_ours_free_or_missing() -> None:
    """Then it may be written at once; a change of hands is counted."""
    assert may_take(None, LeaseObservation(), "me", 0.0)
    mine = claimed(None, "me", WALL, "ns", "l")
    assert mine["spec"]["leaseTransitions"] == 0
    assert may_take(mine, LeaseObservation(), "me", 0.0)
    free = released(mine)
    assert may_take(free, LeaseObservation(), "other", 0.0)
    assert claimed(free, "other", WALL, "ns", "l")["spec"]["leaseTransitions"] == 1


@given(st.floats(0, 100), st.floats(0, 100))
def test_nobody_follows_a_leader_that_still_leads(renewed: float, gap: float) -> None:
    """At the moment when a follower may take the lease, the leader has stopped: its deadline is shorter."""
    held = claimed(None, "leader", WALL, "ns", "l")
    observation = observed(held, LeaseObservation(), renewed)
    now = renewed + gap
    assert not (may_take(held, observation, "follower", now) and is_leading(renewed, now))
