"""Comparing intent with what came back: no write at rest, a write for every real difference."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.pipelines import FULL, SMALLEST, pipeline, valid_pipelines
from tests.operator.rendered import IMAGES

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.changes import differences, matches, quantity
from dynamo.operator.manifests.context import ClusterSettings, Manifest
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.plan.plan import Environment, plan

CLUSTER = Environment(("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace="serving")
CLUSTER_SETTINGS = ClusterSettings("dynamo/frontend:1", IMAGES)


def render(pipeline: DynamoPipeline) -> list[Manifest]:
    return manifests(pipeline, with_images(plan(pipeline, CLUSTER), pipeline, CLUSTER_SETTINGS), CLUSTER_SETTINGS)


def stored(value: Any, name: str = "") -> Any:
    """As an API server gives it back: more fields, empty ones left out, quantities in their shortest form."""
    if isinstance(value, list):
        return [stored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if name in ("requests", "limits"):
        return {k: {"0.5": "500m", "1e3": "1k", "1.5": "1500m"}.get(v, v) for k, v in value.items()}
    kept = {k: stored(v, k) for k, v in value.items() if v not in ("", []) and v is not None}
    extra: dict[str, Any] = {"defaulted": "by the server"} if name not in ("labels", "matchLabels", "data") else {}
    if "fieldPath" in value:
        extra["apiVersion"] = "v1"
    return {**kept, **extra}


@settings(max_examples=60, deadline=None)
@given(valid_pipelines)
def test_at_rest_nothing_is_written(pipeline: DynamoPipeline) -> None:
    """What the API server adds or shortens is no difference."""
    for manifest in render(pipeline):
        live = stored(manifest) | {"status": {"replicas": 1}}
        live["metadata"] |= {"uid": "u", "resourceVersion": "7", "managedFields": []}
        assert differences(manifest, live) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, (*path, name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, index))
    else:
        yield path


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_changed_field_is_seen(data: st.DataObject) -> None:
    """Any field that someone edits by hand is put right."""
    manifest = data.draw(st.sampled_from(render(pipeline(FULL))))
    live = stored(copy.deepcopy(manifest))
    *parents, last = data.draw(st.sampled_from(sorted(leaves(manifest), key=str)))
    place = live
    for part in parents:
        place = place[part]
    place[last] = "edited"
    assert differences(manifest, live)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_lost_field_is_seen(data: st.DataObject) -> None:
    """Also one that is removed, empty texts apart, which are the same as none."""
    manifest = data.draw(st.sampled_from(render(pipeline(FULL))))
    live = stored(copy.deepcopy(manifest))
    candidates = [p for p in leaves(manifest) if isinstance(p[-1], str)]
    *parents, last = data.draw(st.sampled_from(sorted(candidates, key=str)))
    place = live
    for part in parents:
        place = place[part]
    if place.pop(last, "") != "":
        assert differences(manifest, live)


def test_differences_are_named() -> None:
    """For Events and logs: the path of what is not as wanted."""
    deployment = render(pipeline(SMALLEST))[-1]
    live = stored(copy.deepcopy(deployment))
    live["spec"]["replicas"] = 4
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    del live["metadata"]["labels"]["dynamo.dev/pipeline"]
    assert differences(deployment, live) == [
        "metadata.labels.dynamo.dev/pipeline",
        "spec.replicas",
        "spec.template.spec.containers[frontend].image",
    ]


@pytest.mark.parametrize(
    ("intent", "live", "same"),
    [
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, True),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1G"}}, False),
        ({"sizeLimit": "1024Mi"}, {"sizeLimit": "1Gi"}, True),
        ({"replicas": 0}, {}, False),
        ({"readOnly": False}, {}, True),
        ({"enableServiceLinks": False}, {}, False),
        ({"emptyDir": {}}, {}, False),
        ({"nodeSelector": {}}, {}, True),
        ({"args": ["a"]}, {"args": ["a", "b"]}, False),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}, {"name": "A"}]}, True),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "protocol": "TCP"}]}, True),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 2}, {"port": 1}]}, False),
        ({"ports": [{"name": "a", "port": 1}]}, {"ports": [{"name": "a", "port": 2}]}, False),
        ({"a": True}, {"a": 1}, False),
        ({"tolerations": [{"key": "x"}]}, {"tolerations": []}, False),
    ],
)
def test_by_the_rules_of_server_side_apply(intent: Manifest, live: Manifest, same: bool) -> None:
    """Keyed lists item by item, others as a whole; empty is absent where Kubernetes says so."""
    assert matches(intent, live) is same


def test_quantities() -> None:
    """Every suffix that Kubernetes knows."""
    assert quantity("1500m") == Decimal("1.5")
    assert quantity("1Ki") == 1024
    assert quantity(2) == 2
    assert quantity("1e3") == 1000
    assert quantity("1E") == Decimal(10) ** 18
    assert quantity("big") is None
