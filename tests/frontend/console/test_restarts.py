"""How often a worker was started anew, as far as the registry's view tells."""

from __future__ import annotations

from dynamo.frontend.console.restarts import MOST_GONE, Restarts
from dynamo.runtime.discovery.membership import Instance


def instance(number: int, host: str = "pod-a", component: str = "backend") -> Instance:
    return Instance(namespace="n", component=component, endpoint="generate", id=number, nonce="x", host=host)


def test_who_comes_to_the_place_of_one_that_is_gone_follows_it() -> None:
    """Not a worker beside it, of another pod or another component; figures that change are no restart."""
    restarts = Restarts()
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
    restarts = Restarts()
    for number in range(MOST_GONE + 10):
        restarts.joined(instance(number, host=f"pod-{number}"))
        restarts.left(instance(number).key)
    restarts.joined(instance(-1, host="pod-0"))
    restarts.joined(instance(-2, host=f"pod-{MOST_GONE}"))
    assert (restarts.of(instance(-1).key), restarts.of(instance(-2).key)) == (0, 1)
