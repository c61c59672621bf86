"""What the page of a cluster is sent while parts of the cluster can't be read."""

from __future__ import annotations

import json
from typing import Any, cast

from dynamo.cli.cluster.client import Cluster
from dynamo.cli.cluster.errors import ClusterError, RefusedError
from dynamo.cli.monitor.cluster_console.sampler import REST_EVERY, ClusterSampler

PIPELINE: dict[str, Any] = {"metadata": {"namespace": "a", "name": "llama"}, "spec": {"components": []}}


class Broken(Cluster):
    """An API server of which some paths don't answer; it counts what it was asked."""

    def __init__(self, failing: dict[str, ClusterError], answer: bytes = b"") -> None:
        super().__init__(cast("Any", None), "the cluster", "a", inside=False)
        self.failing, self.asked = failing, list[str]()
        self.answer = answer or json.dumps({"items": [PIPELINE]}).encode()

    def raw(self, method: str, path: str, *_: Any, **__: Any) -> bytes:
        kind = path.rpartition("/")[2]
        self.asked.append(kind)
        if kind in self.failing:
            raise self.failing[kind]
        return self.answer if kind == "dynamopipelines" else b"{}"


def read(sampler: ClusterSampler) -> dict[str, Any]:
    return dict(json.loads(sampler.sample()))


def test_pipelines_are_shown_whatever_else_fails() -> None:
    """The reason is shown beside them, and the rest is asked for no more often than it would be."""
    cluster, now = Broken({"horizontalpodautoscalers": ClusterError("too slow")}), [0.0]
    sampler = ClusterSampler(cluster, None, lambda: now[0])
    for second in range(10):
        now[0] = float(second)
        shown = read(sampler)
        assert [p["name"] for p in shown["pipelines"]] == ["llama"]
        assert (shown["unseen"], shown["error"]) == (["too slow"], "")
        assert shown["known"] == {"autoscalers": False, "events": False}
    assert cluster.asked.count("horizontalpodautoscalers") == 1
    cluster.failing = {}
    now[0] = REST_EVERY
    assert read(sampler)["known"] == {"autoscalers": True, "events": True}


def test_what_may_not_be_read_is_unknown_and_not_none() -> None:
    """No right for events: the page doesn't say that there are none."""
    shown = read(ClusterSampler(Broken({"events": RefusedError(403, {}, "/api/v1/events", "the cluster")}), None))
    assert shown["known"] == {"autoscalers": True, "events": False}
    assert shown["unseen"] == ["events: you may not read them"]


def test_what_python_cannot_read_is_told() -> None:
    """An object that is nested 100,000 deep, as a tenant may store one; and none at all."""
    deep = b'{"items": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert "nested too deep" in read(ClusterSampler(Broken({}, deep), "a"))["error"]
    assert "didn't answer in JSON" in read(ClusterSampler(Broken({}, b"<html>"), None))["error"]
    odd = json.dumps({"items": [{"metadata": {}}]}).encode()
    assert "can't be shown (KeyError)" in read(ClusterSampler(Broken({}, odd), None))["error"]
