"""Which pods `dynamo top --pipeline` and `dynamo explain --pipeline` lead to, and that each has a door of its own."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.pipelines import port_forward
from dynamo.cli.cluster.pipelines.port_forward import all_frontends, port_of


def pod(name: str, *ports: tuple[str, int], ready: bool = True) -> dict[str, Any]:
    listed = [{"name": port, "containerPort": number} for port, number in ports]
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"name": name}, "spec": {"containers": [{"name": "sidecar"}, {"ports": listed}]},
        "status": {"phase": "Running", "conditions": [condition]},
    }  # fmt: skip


class Pods:
    """A cluster that has these pods."""

    namespace = "team"

    def __init__(self, *pods: dict[str, Any]) -> None:
        self._pods = pods

    def items(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return list(self._pods)


def test_each_ready_frontend_has_a_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its system port, which asks all its processes and needs no key; to the HTTP port of one without."""
    led: list[tuple[str, int] | None] = []

    class Door(port_forward.Door):
        def __init__(self, cluster: Cluster, name: str, port: int, pod: tuple[str, int] | None = None) -> None:
            led.append(pod)
            super().__init__(cluster, name, port, pod)

    monkeypatch.setattr(port_forward, "Door", Door)
    both = (("http", 8000), ("system", 9090))
    pods = Pods(pod("a", *both), pod("b", *both, ready=False), pod("c", ("http", 8000)), pod("d"))
    with all_frontends(cast("Cluster", pods), "llama") as urls:
        assert led == [("a", 9090), ("c", 8000)]
        assert len(set(urls)) == 2
        assert all(url.startswith("http://127.0.0.1:") for url in urls)


def test_nobody_is_ready() -> None:
    """One sentence, with where to look."""
    with pytest.raises(ClusterError, match="dynamo status llama"), all_frontends(cast("Cluster", Pods()), "llama"):
        pass
    assert port_of(pod("a", ("http", 1)), "system") is None
