"""Edits, new images and restarts roll a pipeline without a gap, also when the operator is killed in the middle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import Object, asking, is_ready, pipeline, say, workers
from openai import OpenAI, OpenAIError

NAME = "rolling"
START_SECONDS = 240
ROLL_SECONDS = 300
WORKER: Object = {"engine": "mocker", "replicas": 2}


def test_edit(namespace: Namespace) -> None:
    """Another engine argument: new workers take over one by one, requests are answered all the time."""
    namespace.apply(pipeline(NAME, WORKER))
    namespace.wait_ready(NAME)
    before = _uids(namespace)
    with asking(namespace, NAME) as client, _asked_all_the_time(client) as failures:
        namespace.apply(pipeline(NAME, {**WORKER, "kvCacheBlockSize": 32}))
        _wait_rolled(namespace, before)
    assert failures == []


def test_restart(namespace: Namespace) -> None:
    """`spec.restart` rolls every part once; the same text again does nothing."""
    namespace.apply(pipeline(NAME, WORKER))
    namespace.wait_ready(NAME)
    before, frontends = _uids(namespace), _uids(namespace, "frontend")
    patch = ("patch", f"dp/{NAME}", "--type=merge", '-p={"spec":{"restart":"now"}}')
    namespace.kubectl(*patch)
    _wait_rolled(namespace, before)
    assert not _uids(namespace, "frontend") & frontends
    after = _uids(namespace)
    assert "no change" in namespace.kubectl(*patch)
    assert _uids(namespace) == after


def test_a_bad_image_and_the_way_back(namespace: Namespace) -> None:
    """An image that isn't there stops the rollout and is named; old workers serve on; the fix rolls out."""
    namespace.apply(pipeline(NAME, WORKER))
    namespace.wait_ready(NAME)
    before = _uids(namespace)
    image = "nowhere.invalid/none:1"
    namespace.apply(pipeline(NAME, {**WORKER, "podTemplate": _image(image)}))
    condition = wait_for("it says why", lambda: _pull_failed(namespace), START_SECONDS)
    assert image in condition["message"]
    assert _uids(namespace) & before
    with asking(namespace, NAME) as client:
        assert say(client, NAME)
    namespace.apply(pipeline(NAME, WORKER))
    namespace.wait_ready(NAME, ROLL_SECONDS)
    assert len(workers(namespace, NAME)) == 2


@pytest.mark.alone
def test_operator_killed(namespace: Namespace, platform: Platform) -> None:
    """In the middle of a rollout: requests go on, never fewer workers than promised, and the next operator ends it."""
    namespace.apply(pipeline(NAME, {**WORKER, "replicas": 3}))
    namespace.wait_ready(NAME)
    before = _uids(namespace)
    here, selector = home(platform), operator_selector(platform)
    with asking(namespace, NAME) as client, _asked_all_the_time(client) as failures:
        namespace.apply(pipeline(NAME, {**WORKER, "replicas": 3, "kvCacheBlockSize": 32}))
        wait_for("the rollout began", lambda: _uids(namespace) - before, START_SECONDS)
        here.kubectl("delete", "pod", "-l", selector, "--grace-period=0", "--force")
        assert sum(map(is_ready, workers(namespace, NAME))) >= 2
        _wait_rolled(namespace, before)
    assert failures == []
    wait_for("the operator is back", lambda: all(map(is_ready, here.list("v1/Pod", selector))), START_SECONDS)


def _uids(namespace: Namespace, component: str = "worker") -> set[str]:
    return {pod["metadata"]["uid"] for pod in workers(namespace, NAME, component)}


def _wait_rolled(namespace: Namespace, before: set[str]) -> None:
    wait_for("no old worker is left", lambda: not _uids(namespace) & before, ROLL_SECONDS)
    namespace.wait_ready(NAME, ROLL_SECONDS)


def _image(image: str) -> Object:
    return {"spec": {"containers": [{"name": "worker", "image": image}]}}


def _pull_failed(namespace: Namespace) -> dict[str, str] | None:
    condition = namespace.condition(NAME)
    return condition if condition.get("reason") == "ImagePullBackOff" else None


@contextmanager
def _asked_all_the_time(client: OpenAI) -> Iterator[list[str]]:
    """One request after the other while the block runs; what failed is in the list afterwards."""
    failures: list[str] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(0.2):
            try:
                say(client, NAME)
            except OpenAIError as error:
                failures.append(repr(error))

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield failures
    finally:
        ended.set()
        asker.join()
