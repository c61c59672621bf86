"""Which ready pods count as out of the frontends' reach."""

from __future__ import annotations

from dynamo.operator.reconcile.reachability import HealthReport, Instance, Reachability

READY = ("w-0", "w-1")


def says(*reached: str, lost: tuple[str, ...] = ()) -> HealthReport:
    return HealthReport((*(Instance(pod, True) for pod in reached), *(Instance(pod, False) for pod in lost)))


def test_a_pod_that_frontends_lose_is_lost_when_it_is_said_twice() -> None:
    reach = Reachability()
    assert not reach.update(READY, [says("w-0", "w-1")])
    assert not reach.update(READY, [says("w-0", lost=("w-1",))])
    assert reach.lost == frozenset()
    assert reach.update(READY, [says("w-0")])
    assert reach.lost == {"w-1"}
    assert not reach.update(READY, [says("w-0")]), "it is no news"


def test_it_is_back_as_soon_as_all_say_so() -> None:
    reach = Reachability()
    for answer in (says("w-0", "w-1"), says("w-0"), says("w-0")):
        reach.update(READY, [answer, says("w-0", "w-1")])
    assert reach.lost == {"w-1"}, "one frontend of two is enough"
    assert reach.update(READY, [says("w-0", "w-1"), says("w-0", "w-1")])
    assert reach.lost == frozenset()


def test_what_no_frontend_ever_named_is_left_to_kubernetes() -> None:
    """A user's own file without a model, and the followers of a group, register nothing."""
    reach = Reachability()
    for _ in range(3):
        assert not reach.update((*READY, "follower-1"), [says("w-0", "w-1")])


def test_a_pod_that_was_lost_before_we_asked_is_lost_all_the_same() -> None:
    """It is named as one that can't be asked: after a restart of the operator, too."""
    reach = Reachability()
    for _ in range(2):
        reach.update(READY, [says("w-0", lost=("w-1",))])
    assert reach.lost == {"w-1"}


def test_a_pod_that_only_some_frontends_know_is_lost_to_the_others() -> None:
    reach = Reachability()
    for _ in range(2):
        reach.update(READY, [says("w-0", "w-1"), says("w-0")])
    assert reach.lost == {"w-1"}


def test_without_an_answer_nothing_is_held_against_anybody() -> None:
    reach = Reachability()
    for answers in ([says("w-0", "w-1")], [says()], [says()]):
        reach.update(READY, answers)
    assert reach.lost == set(READY)
    assert reach.update(READY, [])
    assert reach.lost == frozenset()
    assert not reach.update(READY, [says()])
    assert reach.update(READY, [says()]), "who was known before a silence still is"


def test_a_pod_that_isnt_ready_is_never_lost_and_begins_anew() -> None:
    reach = Reachability()
    for ready, answer in ((READY, says("w-0", "w-1")), (("w-0",), says("w-0")), (READY, says("w-0"))):
        reach.update(ready, [answer])
    assert not reach.update(READY, [says("w-0")]), "it has not registered since it is there again"
