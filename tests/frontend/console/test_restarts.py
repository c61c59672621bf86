"""How often a worker was started anew, as far as the registry's view tells."""

from __future__ import annotations

from dynamo.frontend.console.restarts import MISSED_AFTER, MOST_GONE, Restarts
from dynamo.runtime.discovery.membership import Instance


def instance(number: int, host: str = "pod-a", component: str = "backend") -> Instance:
    return Instance(namespace="n", component=component, endpoint="generate", id=number, nonce="x", host=host)


def test_who_comes_to_the_place_of_one_that_is_gone_follows_it() -> None:
    """Not a worker beside it, of another pod or another component; figures that change are no restart."""
    restarts = Restarts(lambda: 0.0)
    for number in (1, 2):
        restarts.joined(instance(number))
    restarts.changed(instance(1))
    restarts.left(instance(1).key)
    for other in (instance(3, host="pod-b"), instance(4, component="prefill"), instance(2)):
        restarts.joined(other)
        assert restarts.of(other.key) == 0
    restarts.joined(instance(5))
    assert (restarts.of(instance(5).key), restarts.of(instance(1).key)) == (1, 0)
    restarts.left(instance(5).key)
    restarts.joined(instance(6))
    assert restarts.of(instance(6).key) == 2
    restarts.joined(instance(7))
    assert restarts.of(instance(7).key) == 0


def test_the_gone_are_bounded() -> None:
    """A fleet that comes and goes with ever new hosts leaves no more behind than the bound."""
    restarts = Restarts(lambda: 0.0)
    for number in range(MOST_GONE + 10):
        restarts.joined(instance(number, host=f"pod-{number}"))
        restarts.left(instance(number).key)
    restarts.joined(instance(-1, host="pod-0"))
    restarts.joined(instance(-2, host=f"pod-{MOST_GONE}"))
    assert (restarts.of(instance(-1).key), restarts.of(instance(-2).key)) == (0, 1)


def test_a_follower_that_comes_before_its_predecessor_is_missed() -> None:
    """It counts, where it came just now; a worker beside it that is there for long doesn't."""
    now = [0.0]
    restarts = Restarts(lambda: now[0])
    for number in (1, 2):
        restarts.joined(instance(number))
    now[0] = 1000.0
    restarts.joined(instance(3))
    now[0] += MISSED_AFTER / 2
    restarts.left(instance(1).key)
    assert [restarts.of(instance(number).key) for number in (2, 3)] == [0, 1]
    restarts.left(instance(3).key)
    assert restarts.of(instance(2).key) == 0
    restarts.joined(instance(4))
    assert restarts.of(instance(4).key) == 2
