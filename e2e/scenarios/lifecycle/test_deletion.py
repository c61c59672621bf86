"""`kubectl delete dp` and `kubectl delete namespace` end within a minute, and leave nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import operator_down
from e2e.namespace import namespace_nats, traces
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import pipeline

NAME = "gone"
BAR_SECONDS = 60


def test_delete_pipeline(
    namespace: Namespace, platform: Platform, record_property: Callable[[str, object], None]
) -> None:
    """With everything that a pipeline can have: nothing is left in the namespace, its NATS included, nor in etcd."""
    _delete_pipeline(namespace, platform, record_property)


@pytest.mark.alone
def test_delete_pipeline_while_the_operator_is_down(
    namespace: Namespace, platform: Platform, record_property: Callable[[str, object], None]
) -> None:
    """The same without an operator: nothing waits for it."""
    _delete_pipeline(namespace, platform, record_property, down=True)


@pytest.mark.full
@pytest.mark.alone
def test_delete_namespace_while_the_operator_is_down(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Callable[[str, object], None]
) -> None:
    """No finalizer of ours holds a namespace."""
    namespace = new_namespace()
    namespace.apply(_everything())
    dynamo = namespace.wait_ready(NAME)["status"]["namespace"]
    with operator_down(platform):
        began = time.monotonic()
        namespace.delete()
        record_property("seconds", round(time.monotonic() - began, 1))
        wait_for("nothing is left in etcd", lambda: traces.in_etcd(platform, dynamo) == [], BAR_SECONDS)


def test_delete_namespace(
    new_namespace: Callable[[], Namespace], platform: Platform, record_property: Callable[[str, object], None]
) -> None:
    """With the operator up, which must not make anew what the namespace controller takes away."""
    namespace = new_namespace()
    namespace.apply(_everything())
    dynamo = namespace.wait_ready(NAME)["status"]["namespace"]
    began = time.monotonic()
    namespace.delete()
    record_property("seconds", round(time.monotonic() - began, 1))
    wait_for("nothing is left in etcd", lambda: traces.in_etcd(platform, dynamo) == [], BAR_SECONDS)


def test_delete_right_after_apply(namespace: Namespace, platform: Platform) -> None:
    """While its pods still start: they don't stay for their grace."""
    for _ in range(2):
        namespace.apply(_everything())
        wait_for("pods are there", lambda: namespace.list("v1/Pod"), BAR_SECONDS)
        _delete_and_wait(namespace)


def _everything() -> dict[str, object]:
    files = {"engine": "mocker", "replicas": 2, "engineArgs": {"speedup_ratio": 10}}
    return pipeline(NAME, files, model={"name": "m", "chatTemplate": "{{ messages }}"}, frontend={"replicas": 2})


def _delete_pipeline(
    namespace: Namespace, platform: Platform, record_property: Callable[[str, object], None], down: bool = False
) -> None:
    namespace.apply(_everything())
    dynamo = namespace.wait_ready(NAME)["status"]["namespace"]
    assert traces.in_etcd(platform, dynamo)
    assert namespace_nats.subjects(namespace, dynamo)
    with operator_down(platform) if down else _nothing():
        began = time.monotonic()
        _delete_and_wait(namespace)
        wait_for("nothing is left in etcd", lambda: traces.in_etcd(platform, dynamo) == [], BAR_SECONDS)
        record_property("seconds", round(time.monotonic() - began, 1))


def _delete_and_wait(namespace: Namespace) -> None:
    namespace.kubectl("delete", f"dp/{NAME}", "--wait=true", seconds=BAR_SECONDS)
    wait_for("the namespace is empty", lambda: traces.in_namespace(namespace) == [], BAR_SECONDS)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
