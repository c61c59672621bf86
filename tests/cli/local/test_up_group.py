"""`dynamo up` with a worker of two nodes, and nothing played: mocker, frontend, etcd and NATS as users have them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.waiting import eventually

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(400)]

PIPELINE = """\
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: test}
spec:
  components: [{engine: mocker, nodes: 2, tensorParallelSize: 2}]
"""
SOON = 100.0
"""A process starts in two seconds, and in forty where twelve others want the same two cores."""


def test_a_worker_of_two_nodes_serves_while_it_is_whole(place: Workplace) -> None:
    """A killed follower takes its leader out of routing, the next one brings it back, and Ctrl-C leaves nothing."""
    up = place.up(place.write(text=PIPELINE))
    url = up.wait_for("url ", within=SOON).split()[1]
    health = url.removesuffix("/v1") + "/health"
    assert {part["name"] for part in place.parts()} >= {"worker-0-0", "worker-0-1"}
    assert answer(url) == 200
    leader, follower = place.part_pid("worker-0-0"), place.part_pid("worker-0-1")

    up.signal(signal.SIGSTOP)  # so that nobody starts another follower while it is looked at
    os.kill(follower, signal.SIGKILL)
    eventually("it is out of routing", lambda: instances(health) == 0, SOON)
    assert answer(url) >= 400
    up.signal(signal.SIGCONT)
    eventually("it is whole again", lambda: instances(health) == 1, SOON)
    assert answer(url) == 200
    assert place.part_pid("worker-0-1") != follower
    assert place.part_pid("worker-0-0") == leader, "its leader lived on"

    up.signal(signal.SIGINT)
    up.end()
    assert up.process.returncode == 130
    place.nothing_left()


def answer(url: str) -> int:
    """The status of a completion."""
    asked = httpx.post(f"{url}/completions", json={"model": "test", "prompt": "hi", "max_tokens": 4}, timeout=20)
    return asked.status_code


def instances(health: str) -> int:
    """Those that the frontend routes to."""
    models: dict[str, Any] = httpx.get(health, timeout=5).json()["models"]
    return sum(int(model["instances"]) for model in models.values())
