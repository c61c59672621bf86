"""What is left behind is seen: in a process, in etcd, on NATS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.chaos.leaks import Held, Servers, changed, left_over

FIRST = Held("worker-1", 1, 0.2, files=20, threads=10, megabytes=100.0, tasks=12)
A, B = "00000000000001", "0000000000000b"


def servers(*ids: str, **changes: Any) -> Servers:
    keys = frozenset(f"dynamo/instances/chaos/backend/generate/{entry}" for entry in ids)
    return replace(
        Servers(keys | {"dynamo/epoch"}, tuple((f"dyn.chaos.ep.b.g.{entry}.req",) for entry in ids)), **changes
    )


def test_what_stays_the_same_is_no_leak() -> None:
    """Nor is what caches and pools take while a run lasts."""
    later = replace(
        FIRST, life=4, minutes=10.0, files=22, threads=14, megabytes=140.0, tasks=13, figures={"running": 0.0}
    )
    assert left_over([FIRST], [later]) == []


@pytest.mark.parametrize(
    "more",
    [
        {"files": 30}, {"threads": 30}, {"megabytes": 200.0}, {"tasks": 20}, {"figures": {"running": 1.0}},
        {"figures": {"kv": 0.01}}, {"figures": {"inflight": 1.0}},
    ],
)  # fmt: skip
def test_what_grows_is_a_leak(more: dict[str, Any]) -> None:
    """Each of them by itself, in one line that names the process."""
    (line,) = left_over([FIRST], [replace(FIRST, **more)])
    assert line.startswith("worker-1 (life 1)")


def test_ids_of_another_life_are_no_difference() -> None:
    """Instances that live, and nothing of those that died."""
    assert changed(servers(A), servers(B), frozenset({B})) == []


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (servers(A, B), "too many"),
        (servers(), "lacks"),
        (servers(B, keys=servers(B).keys | {"dynamo/clients/chaos/" + A}), "dynamo/clients/chaos/*"),
        (servers(B, subjects=(("dyn.chaos.ep.b.g.x.req", "more"),)), "more"),
        (servers(B, subjects=()), "too few"),
    ],
)
def test_what_servers_keep_is_seen(now: Servers, words: str) -> None:
    """Keys of the dead, and subscriptions too many or too few."""
    assert any(words in line for line in changed(servers(A), now, frozenset({B})))


def test_a_worker_may_listen_for_answers_once() -> None:
    """Whether it has asked another worker something is no matter; two subscriptions to the same are."""
    own, answers = "dyn.chaos.ep.b.g.x.req", "dyn.chaos.in.00000000000001.s"
    first = servers(A, subjects=((own,),))
    assert changed(first, servers(A, subjects=((own, answers),)), frozenset({A})) == []
    assert len(changed(first, servers(A, subjects=((own, answers, answers),)), frozenset({A}))) == 2
    assert len(changed(servers(A, subjects=()), servers(A, subjects=((answers,),)), frozenset({A}))) == 1
