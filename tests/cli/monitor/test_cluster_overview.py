"""What the page of a cluster shows, out of live objects."""

from __future__ import annotations

import json
from typing import Any

from dynamo.cli.monitor.cluster_console.overview import LAST_EVENTS, LONGEST_TEXT, ClusterObjects, fitted, overview


def pipeline(namespace: str, name: str = "llama", message: str = "serves", seen: int = 1) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": message}
    return {
        "metadata": {"namespace": namespace, "name": name, "generation": 1},
        "spec": {"components": [{"engine": "mocker"}]},
        "status": {"observedGeneration": seen, "conditions": [ready]},
    }


def scaler(namespace: str, kind: str = "DynamoPipeline", group: str = "dynamo.dev/v1alpha1") -> dict[str, Any]:
    target = {"apiVersion": group, "kind": kind, "name": "llama"}
    return {"metadata": {"namespace": namespace, "name": "hpa"}, "spec": {"scaleTargetRef": target, "maxReplicas": 4}}


def pod(namespace: str, phase: str = "Running", limits: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": "llama-0", "labels": {"dynamo.dev/pipeline": "llama"}},
        "spec": {"containers": [{"resources": {"limits": limits or {}}}, {}]},
        "status": {"phase": phase},
    }


def event(number: int, name: str = "llama", namespace: str = "a") -> dict[str, Any]:
    return {
        "metadata": {}, "type": "Normal", "reason": "R", "message": f"said {number}",
        "lastTimestamp": f"2026-01-01T00:00:{number:02d}Z",
        "involvedObject": {"namespace": namespace, "kind": "DynamoPipeline", "name": name},
    }  # fmt: skip


def test_each_pipeline_gets_its_own_autoscaler_and_events() -> None:
    """Of the same namespace, name and kind only; the youngest events first, so many of them."""
    events = [event(number) for number in range(20)] + [event(30, namespace="b"), event(31, name="other")]
    shown = overview(ClusterObjects([pipeline("b"), pipeline("a")], autoscalers=[scaler("a")], events=events))
    first, second = shown["pipelines"]
    assert (first["namespace"], second["namespace"]) == ("a", "b")
    assert first["scaling"]["by"] == "hpa"
    assert second["scaling"] is None
    assert [line["text"].split()[-1] for line in first["events"]] == [str(n) for n in range(19, 19 - LAST_EVENTS, -1)]
    assert [line["text"].split()[-1] for line in second["events"]] == ["30"]


def test_autoscalers_of_other_kinds_are_nobodys() -> None:
    """A Deployment of the same name, or another group's kind."""
    others = [scaler("a", "Deployment", "apps/v1"), scaler("a", group="evil.dev/v1alpha1")]
    assert overview(ClusterObjects([pipeline("a")], autoscalers=others))["pipelines"][0]["scaling"] is None


def test_what_an_older_generation_said_is_not_repeated() -> None:
    """Until the operator has looked, nothing is called ready."""
    (row,) = overview(ClusterObjects([pipeline("a", seen=0)]))["pipelines"]
    assert (row["state"], row["reason"], row["message"]) == ("unseen", "", "")


def test_namespaces_sum_devices_of_living_pods() -> None:
    """Plain resources aren't devices; pods that are over use none."""
    limits = {"nvidia.com/gpu": "2", "cpu": "4", "memory": "8Gi"}
    pods = [pod("a", limits=limits), pod("a", "Pending", limits), pod("a", "Failed", limits), pod("c", limits=limits)]
    (row,) = overview(ClusterObjects([pipeline("a")], pods))["namespaces"]
    assert (row["pods"], row["devices"], row["ready"], row["pipelines"]) == (2, {"nvidia.com/gpu": 4}, 1, 1)


def test_texts_and_lists_are_bounded() -> None:
    """A tenant's message of 30,000 characters, and an object with nothing in it."""
    shown = overview(ClusterObjects([pipeline("a", message="x" * 30_000)], events=[event(1)] * 400))
    assert len(shown["pipelines"][0]["message"]) == LONGEST_TEXT
    assert len(json.dumps(shown)) < 8_000
    bare = {"metadata": {"name": "n"}}
    assert overview(ClusterObjects([bare], [bare], [bare], [bare], [bare]))["pipelines"][0]["state"] == "unseen"


def test_a_snapshot_fits_however_long_its_texts_are() -> None:
    """Five hundred pipelines of the worst: events go first, then pipelines, and the page is told."""
    worst = [pipeline("a", f"p{number}", message="\x01" * 30_000) for number in range(500)]
    for live in worst:
        live["status"]["conditions"] *= 16
        live["status"]["model"] = "\u0800" * 1_000
    shown = overview(ClusterObjects(worst, events=[event(1, f"p{number}") for number in range(500)] * 8))
    whole = fitted(shown, 1 << 30)
    for most in (len(whole) - 1, 3 << 20, 100_000):
        text = fitted(shown, most)
        assert len(text) <= most
        read = json.loads(text)
        assert read["short"]
        assert read.get("more", False) == (len(read["pipelines"]) < 500)
    assert json.loads(whole)["pipelines"] == shown["pipelines"]
