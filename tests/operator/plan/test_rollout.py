"""`converge` against a simulated cluster: the floor holds, and the goal is always reached."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.operator.plan.rollout import Action, RevisionSet, Scale, Start, Stop, converge
from dynamo.operator.plan.workload import Plan, Rollout, Workload


def workload(replicas: int, rollout: Rollout = Rollout(), revision: str = "new") -> Workload:  # noqa: B008
    return Workload("worker", revision, ("python",), (), replicas, rollout=rollout)


def plan_of(*workloads: Workload) -> Plan:
    return Plan("p", "p", "m", workloads)


def a_set(revision: str, replicas: int, ready: set[int] | None = None) -> RevisionSet:
    serving = frozenset(range(replicas) if ready is None else ready)
    return RevisionSet("worker", revision, replicas, serving, replicas)


class Cluster:
    """Carries actions out at once; new replicas become ready when `settle` says so."""

    def __init__(self, sets: list[RevisionSet]) -> None:
        self.sets = {s.revision: s for s in sets}

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                revision = action.workload.revision
                self.sets[revision] = RevisionSet("worker", revision, action.replicas, present=action.replicas)
            elif isinstance(action, Stop):
                del self.sets[action.revision]
            else:
                before = self.sets[action.revision]
                ready = frozenset(o for o in before.ready if o < action.replicas)
                self.sets[action.revision] = replace(
                    before, replicas=action.replicas, ready=ready, present=action.replicas
                )

    def settle(self, revision: str, share: int = 100) -> None:
        """The first `share` percent of a revision's replicas (one at least) become ready."""
        one = self.sets.get(revision)
        if one is not None and one.replicas:
            count = max(1, one.replicas * share // 100)
            self.sets[revision] = replace(one, ready=one.ready | frozenset(range(count)))

    def available(self) -> int:
        return sum(len(s.ready) for s in self.sets.values())


def test_nothing_running_starts_everything() -> None:
    """An empty cluster gets each workload with all its replicas at once."""
    wanted = workload(4)
    assert converge(plan_of(wanted), []) == [Start(wanted, 4)]


def test_the_goal_gives_no_actions() -> None:
    """Zero steps when nothing is to do."""
    assert converge(plan_of(workload(2)), [a_set("new", 2)]) == []


def test_scaling_needs_no_new_revision() -> None:
    """Another number of replicas is one step."""
    assert converge(plan_of(workload(5)), [a_set("new", 2)]) == [Scale("worker", "new", 5)]
    assert converge(plan_of(workload(1)), [a_set("new", 3)]) == [Scale("worker", "new", 1)]


def test_scale_to_zero_stops_all() -> None:
    """replicas: 0 keeps the revision and none of its replicas."""
    assert converge(plan_of(workload(0)), [a_set("new", 3)]) == [Scale("worker", "new", 0)]


def test_a_component_that_left_the_file_is_removed() -> None:
    """A set whose component isn't planned goes at once."""
    gone = RevisionSet("other", "abc", 1, frozenset({0}), 1)
    assert converge(plan_of(), [gone]) == [Stop("other", "abc")]


def test_surge_starts_one_before_stopping_one() -> None:
    """maxSurge 1, maxUnavailable 0: first one more, then one less."""
    wanted = workload(1, Rollout(max_surge=1, max_unavailable=0))
    assert converge(plan_of(wanted), [a_set("old", 1)]) == [Start(wanted, 1)]
    assert converge(plan_of(wanted), [a_set("old", 1), a_set("new", 1, set())]) == []
    assert converge(plan_of(wanted), [a_set("old", 1), a_set("new", 1)]) == [Stop("worker", "old")]


def test_recreate_waits_until_the_old_ones_are_gone() -> None:
    """Nothing of the new revision starts while a process of the old one still ends."""
    wanted = workload(2, Rollout(0, 2, recreate=True))
    assert converge(plan_of(wanted), [a_set("old", 2)]) == [Start(wanted, 0), Stop("worker", "old")]
    ending = RevisionSet("worker", "old", 0, frozenset(), 1)
    assert converge(plan_of(wanted), [ending, a_set("new", 0)]) == [Stop("worker", "old")]
    assert converge(plan_of(wanted), [a_set("new", 0)]) == [Scale("worker", "new", 2)]


def test_a_revision_that_never_starts_does_not_block_the_next() -> None:
    """The broken middle revision goes at once, the old one keeps serving."""
    wanted = workload(2, Rollout(1, 0), "third")
    actions = converge(plan_of(wanted), [a_set("first", 2), a_set("second", 1, set())])
    assert actions == [Start(wanted, 1), Stop("worker", "second")]


def test_rollback_is_a_rollout_to_the_old_revision() -> None:
    """Going back grows the old set again and drops the broken new one."""
    back = workload(3, Rollout(0, 1), "first")
    assert converge(plan_of(back), [a_set("first", 2), a_set("second", 1, set())]) == [
        Scale("worker", "first", 3),
        Stop("worker", "second"),
    ]


ROLLOUTS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any).map(lambda pair: Rollout(*pair))
READY = st.sets(st.integers(0, 5), max_size=6)


@st.composite
def old_sets(draw: st.DrawFn) -> list[RevisionSet]:
    found = []
    for revision in draw(st.lists(st.sampled_from(["a", "b", "c", "new"]), unique=True, max_size=3)):
        replicas = draw(st.integers(0, 6))
        found.append(a_set(revision, replicas, {o for o in draw(READY) if o < replicas}))
    return found


@settings(deadline=None)
@given(old_sets(), st.integers(0, 6), ROLLOUTS, st.lists(st.sampled_from([0, 30, 60, 100]), max_size=12))
def test_the_floor_holds_and_the_goal_is_reached(
    sets: list[RevisionSet], goal: int, rollout: Rollout, progress: list[int]
) -> None:
    """No step ever takes availability below the floor (or below what there was), and the steps end at the goal."""
    cluster, wanted = Cluster(sets), workload(goal, rollout)
    floor = goal - rollout.max_unavailable
    for share in [*progress, *[100] * 40]:
        before = cluster.available()
        cluster.carry_out(converge(plan_of(wanted), cluster.sets.values()))
        assert cluster.available() >= min(before, floor)
        if share:
            cluster.settle("new", share)
    assert converge(plan_of(wanted), cluster.sets.values()) == []
    assert {r: s.replicas for r, s in cluster.sets.items()} == {"new": goal}


@given(old_sets(), st.integers(0, 6), ROLLOUTS)
def test_no_more_serve_and_start_than_the_surge_allows(sets: list[RevisionSet], goal: int, rollout: Rollout) -> None:
    """Growing keeps serving old replicas plus all new ones within replicas + maxSurge."""
    cluster, wanted = Cluster(sets), workload(goal, rollout)
    had = cluster.sets.get("new", a_set("new", 0)).replicas
    cluster.carry_out(converge(plan_of(wanted), cluster.sets.values()))
    new = cluster.sets["new"].replicas
    old_serving = sum(len(s.ready) for r, s in cluster.sets.items() if r != "new")
    assert new <= had or new + old_serving <= goal + rollout.max_surge


@given(st.integers(0, 6), st.sets(st.integers(0, 8)), st.integers(0, 8))
def test_what_is_lost_is_counted_out_and_in_again(replicas: int, lost: set[int], wanted: int) -> None:
    """Of the number that a set is told to have, so many aren't lost as are wanted, and no smaller one does it."""
    one = replace(a_set("new", replicas, set()), lost=frozenset(lost))
    told = one.with_lost(wanted)
    assert replace(one, replicas=told).living == wanted
    assert all(replace(one, replicas=fewer).living < wanted for fewer in range(told))


def test_a_lost_replica_is_replaced_by_another_number() -> None:
    """Its own can't be had; back again, the one in its place goes once enough others serve."""
    wanted = plan_of(workload(2))
    lost = RevisionSet("worker", "new", 2, frozenset({0}), 1, frozenset({1}))
    assert converge(wanted, [lost]) == [Scale("worker", "new", 3)]
    assert converge(wanted, [replace(lost, replicas=3)]) == [], "the third one starts"
    assert converge(wanted, [replace(lost, replicas=3, ready=frozenset({0, 2}))]) == []
    back = RevisionSet("worker", "new", 3, frozenset({0, 1, 2}), 3)
    assert converge(wanted, [back]) == [Scale("worker", "new", 2)]
    single = plan_of(workload(1, Rollout(max_surge=1, max_unavailable=0)))
    back = RevisionSet("worker", "new", 2, frozenset({1}), 2)
    assert converge(single, [back]) == [], "the only one that serves stays until the first serves"


@settings(deadline=None)
@given(old_sets(), st.integers(0, 6), ROLLOUTS, st.sets(st.integers(0, 5), max_size=4))
def test_with_lost_ones_the_goal_is_reached_too(
    sets: list[RevisionSet], goal: int, rollout: Rollout, numbers: set[int]
) -> None:
    """As many live as are wanted, of every history; then nothing more is written."""
    lost = frozenset(numbers)
    cluster = Cluster([replace(s, ready=s.ready - lost, lost=lost) for s in sets])
    wanted = workload(goal, rollout)
    for _ in range(40):
        cluster.carry_out(converge(plan_of(wanted), cluster.sets.values()))
        new = cluster.sets["new"]
        living = frozenset(range(new.replicas)) - new.lost
        cluster.sets["new"] = replace(new, ready=living)
    assert converge(plan_of(wanted), cluster.sets.values()) == []
    assert {r: s.living for r, s in cluster.sets.items()} == {"new": goal}
