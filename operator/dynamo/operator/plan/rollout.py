"""The next steps from what runs to what a plan wants: `converge(plan, observed) -> actions`, pure.

Every revision of a component is a set of replicas of its own, numbered from 0, that only
grows and shrinks at its end (a StatefulSet, or the local executor's processes). One call
gives the steps that are allowed now; the executor calls again when something changed.
So surge, rollback and a revision that never starts are one mechanism: the wanted revision
grows within `max_surge`, every other shrinks while enough replicas stay available.

A replica that is lost (its pod hangs on a dead node and keeps its name) counts as gone, and
the set grows by one in its place: what follows is decided without its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dynamo.operator.plan.workload import Plan, Rollout, Workload


@dataclass(frozen=True)
class RevisionSet:
    """The replicas that exist of one revision of a component."""

    component: str
    revision: str
    replicas: int
    """How many it was last set to have."""
    ready: frozenset[int] = frozenset()
    """Ordinals that serve."""
    present: int = 0
    """How many exist, those that are ending included."""
    lost: frozenset[int] = frozenset()
    """Ordinals that nobody can start again: a pod of that name hangs on a dead node."""

    @property
    def living(self) -> int:
        """Return how many of the wanted replicas aren't lost."""
        return self.replicas - sum(ordinal < self.replicas for ordinal in self.lost)

    def without_lost(self) -> RevisionSet:
        """Return it numbered as if the lost ones had never been; `with_lost` leads back."""
        ready = frozenset(self._rank(ordinal) for ordinal in self.ready - self.lost)
        return replace(self, replicas=self.living, ready=ready, lost=frozenset())

    def with_lost(self, living: int) -> int:
        """Return the fewest replicas of which so many aren't lost."""
        replicas = living
        for ordinal in sorted(self.lost):
            replicas += ordinal < replicas
        return replicas

    def _rank(self, ordinal: int) -> int:
        return ordinal - sum(lost < ordinal for lost in self.lost)


@dataclass(frozen=True)
class Start:
    """Make a revision that doesn't exist yet."""

    workload: Workload
    replicas: int


@dataclass(frozen=True)
class Scale:
    """Grow or shrink a revision at its end."""

    component: str
    revision: str
    replicas: int


@dataclass(frozen=True)
class Stop:
    """Remove a revision and what is left of it."""

    component: str
    revision: str


Action = Start | Scale | Stop


def converge(plan: Plan, observed: Iterable[RevisionSet]) -> list[Action]:
    """Return the steps allowed now, in order; none when the plan is reached."""
    sets = list(observed)
    wanted = {w.component for w in plan.workloads}
    actions: list[Action] = [Stop(s.component, s.revision) for s in sets if s.component not in wanted]
    for workload in plan.workloads:
        actions += _component(workload, [s for s in sets if s.component == workload.component])
    return actions


def _component(workload: Workload, live: list[RevisionSet]) -> list[Action]:
    sets = [s.without_lost() for s in live]
    before = {s.revision: s for s in live}
    current = next((s for s in sets if s.revision == workload.revision), None)
    old = [s for s in sets if s.revision != workload.revision]
    new = current or RevisionSet(workload.component, workload.revision, 0)
    goal, rollout = workload.replicas, workload.rollout
    floor = goal - rollout.max_unavailable
    trimmed = [_without_idle_end(s) for s in old]
    grown = replace(new, replicas=_grown(new, trimmed, goal, rollout))
    shrunk = _shrink([grown, *trimmed], [goal, *(0 for _ in trimmed)], floor)
    targets = [replace(s, replicas=_replicas_for(before.get(s.revision), s.replicas)) for s in shrunk]
    return [
        *_towards(workload, before.get(workload.revision), targets[0].replicas),
        *(action for s, after in zip(old, targets[1:], strict=True) for action in _retire(before[s.revision], after)),
    ]


def _replicas_for(live: RevisionSet | None, living: int) -> int:
    """Return the replicas to ask for, so that so many of them live."""
    return living if live is None else live.with_lost(living)


def _without_idle_end(old: RevisionSet) -> RevisionSet:
    """Cut replicas at its end that don't serve, so that a broken revision never blocks the next."""
    return replace(old, replicas=min(old.replicas, max(old.ready, default=-1) + 1))


def _grown(new: RevisionSet, old: list[RevisionSet], goal: int, rollout: Rollout) -> int:
    """Return how many of the wanted revision there may be now; old replicas that don't serve hold up nobody."""
    if new.replicas >= goal:
        return new.replicas
    if rollout.recreate and any(s.present for s in old):
        return new.replicas
    serving = sum(len(_serving(s)) for s in old)
    return max(new.replicas, min(goal, goal + rollout.max_surge - serving))


def _shrink(sets: list[RevisionSet], goals: list[int], floor: int) -> list[RevisionSet]:
    """Take replicas from the end of each set while at least `floor` serve, or none that serves is lost."""
    result = list(sets)
    for index, goal in enumerate(goals):
        others = sum(len(_serving(s)) for i, s in enumerate(result) if i != index)
        result[index] = _shrink_one(result[index], goal, floor - others)
    return result


def _shrink_one(revision_set: RevisionSet, goal: int, needed: int) -> RevisionSet:
    serving = sorted(_serving(revision_set))
    keep = min(len(serving), max(needed, 0))
    lowest = serving[keep - 1] + 1 if keep else 0
    return replace(revision_set, replicas=min(revision_set.replicas, max(goal, lowest)))


def _serving(revision_set: RevisionSet) -> frozenset[int]:
    return frozenset(ordinal for ordinal in revision_set.ready if ordinal < revision_set.replicas)


def _towards(workload: Workload, current: RevisionSet | None, replicas: int) -> list[Action]:
    if current is None:
        return [Start(workload, replicas)]
    if current.replicas != replicas:
        return [Scale(workload.component, workload.revision, replicas)]
    return []


def _retire(before: RevisionSet, after: RevisionSet) -> list[Action]:
    if after.replicas == 0:
        return [Stop(before.component, before.revision)]
    if after.replicas != before.replicas:
        return [Scale(before.component, before.revision, after.replicas)]
    return []
