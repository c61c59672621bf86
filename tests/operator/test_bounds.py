"""One tenant's pipelines against the time and room of all: turns, shares, what is worked out, what is read at all."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.pipelines import SMALLEST, body, pipeline
from tests.operator.rendered import render

from dynamo.operator.api import rules
from dynamo.operator.api.body import REFUSED, known_status, read
from dynamo.operator.api.bounds import DEPTH, SPEC_BYTES, is_deeper
from dynamo.operator.api.rules import unreadable
from dynamo.operator.cluster import object_store as store_module
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.pipeline_cache import KEPT_BYTES, SMALL_BYTES, PipelineCache
from dynamo.operator.kube.client import is_deep
from dynamo.operator.kube.refused_fields import suspects
from dynamo.operator.kube.resources import Key, resource_of
from dynamo.operator.manifests.context import RenderError
from dynamo.operator.namespace_turns import PATIENCE, SMALL, Budget, ComputeThread, Lanes, TooLong, effort
from dynamo.operator.workqueue import Backoff, WorkQueue

CALM = Key("calm", "a")
TIMEOUT = 30.0


def run(case: Callable[[], Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(TIMEOUT):
            return await case()

    return asyncio.run(bounded())


def nested(depth: int) -> Any:
    found: Any = 1
    for _ in range(depth):
        found = {"a": found}
    return found


def test_a_lane_with_much_to_do_keeps_nobody_waiting() -> None:
    """A hundred turns of one namespace wait; who comes then is the next but one, and those of one lane keep order."""

    async def case() -> list[str]:
        lanes, served, gate = Lanes(at_once=1), list[str](), asyncio.Event()

        async def one(lane: str, name: str) -> None:
            async with lanes.turn(lane):
                await gate.wait()
                served.append(name)

        tasks = [asyncio.create_task(one("loud", f"loud-{i}")) for i in range(100)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(one("calm", "calm")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        return served

    served = run(case)
    assert served.index("calm") <= 2
    assert [name for name in served if name != "calm"] == [f"loud-{i}" for i in range(100)]


def test_turns_are_paid_for_lane_by_lane() -> None:
    """With a budget, too: a namespace that has spent it all waits for itself; a cancelled turn is nobody's loss."""

    async def case() -> list[str]:
        now, served = 0.0, list[str]()
        lanes = Lanes(4, Budget(rate=200, burst=1), clock=lambda: now)
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def one(lane: str) -> None:
            nonlocal now
            async with lanes.turn(lane):
                now = loop.time() - begun
                served.append(lane)

        loud = [asyncio.create_task(one("loud")) for _ in range(20)]
        await asyncio.sleep(0)
        calm = asyncio.create_task(one("calm"))
        for task in loud[5:10]:
            task.cancel()
        await asyncio.gather(calm, *loud, return_exceptions=True)
        return served

    served = run(case)
    assert served.index("calm") <= 3
    assert served.count("loud") == 15


def test_a_namespace_has_its_share_of_the_looks() -> None:
    """Beyond it its pipelines wait; another namespace's, due later, is taken; each end takes one that waited."""
    queue = WorkQueue(Backoff(spacing=0.0), share=2)
    loud = [Key("loud", str(i)) for i in range(10)]
    for number, key in enumerate(loud):
        queue.mark(key, number / 10)
    queue.mark(CALM, 2.0)
    assert [queue.take(3.0) for _ in range(4)] == [loud[0], loud[1], CALM, None]
    assert queue.next_due() is None
    queue.failed(loud[0], 3.0, 0.5)
    assert [queue.take(3.0) for _ in range(2)] == [loud[2], None]
    queue.forget(loud[1], 3.0)
    assert queue.take(3.0) == loud[3]
    taken: list[Key] = []
    running = [loud[2], loud[3]]
    while running:
        queue.succeeded(running.pop(0), 3.0, 0.5)
        while (due := queue.take(3.0)) is not None:
            taken.append(due)
            running.append(due)
    assert taken == loud[4:]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.sampled_from(["ok", "bad", "gone"])), max_size=60)
)
def test_nothing_that_was_marked_is_forgotten(steps: list[tuple[str, int, str]]) -> None:
    """Whatever namespaces have their share: in the end every marked pipeline has been looked at, never two too many."""
    queue, now, running = WorkQueue(Backoff(spacing=0.0, first_retry=0.1), share=2), 0.0, list[Key]()
    marked: set[Key] = set()

    def take() -> None:
        while (key := queue.take(now)) is not None:
            running.append(key)
            marked.discard(key)
            assert max([sum(k.namespace == n for k in running) for n in "abc"]) <= 2

    def end(how: str) -> None:
        key = running.pop(0)
        {"ok": lambda: queue.succeeded(key, now, 0.5), "bad": lambda: queue.failed(key, now, 0.5),
         "gone": lambda: queue.forget(key, now)}[how]()  # fmt: skip

    for namespace, name, how in steps:
        now += 0.01
        queue.mark(Key(namespace, str(name)), now, urgent=True)
        marked.add(Key(namespace, str(name)))
        take()
        if running and how != "bad":
            end(how)
    for _ in range(200):
        now += 1000.0
        take()
        while running:
            end("ok")
    assert not marked


def test_a_spec_that_takes_too_long_is_given_up() -> None:
    """Two times; then it isn't even tried, until the spec is another. Only what is large goes into the thread."""

    async def case() -> None:
        spent, threads = 0.0, list[str]()

        def clock() -> float:
            nonlocal spent
            spent += 6.0
            return spent

        compute = ComputeThread(clock)
        for _ in range(PATIENCE):
            await compute.run(CALM, 1, SMALL + 1, lambda: threads.append(threading.current_thread().name))
        with pytest.raises(TooLong, match="took the operator 6 s, the limit is 5 s: use fewer pods"):
            await compute.run(CALM, 1, SMALL + 1, lambda: threads.append("never"))
        await compute.run(CALM, 2, SMALL, lambda: threads.append(threading.current_thread().name))
        assert [name.rpartition("_")[0] for name in threads[:PATIENCE]] == ["computing"] * PATIENCE
        assert threads[PATIENCE:] == [threading.current_thread().name]
        compute.close()

    run(case)


def test_what_many_pods_cost_is_known_beforehand() -> None:
    """A small pipeline is worked out at once, one of a thousand pods or with a long template in the thread."""
    large = {"components": [{"engine": "mocker", "nodes": 2, "tensorParallelSize": 2, "replicas": 512}]}
    long = {"components": [{"engine": "mocker", "podTemplate": {"metadata": {"annotations": {"a": "x" * 100_000}}}}]}
    assert effort(pipeline(SMALLEST)) <= SMALL
    assert effort(pipeline(large)) > SMALL
    assert effort(pipeline(long)) > SMALL


def test_objects_of_a_pipeline_are_bounded_together() -> None:
    """Five hundred groups of a template of 100 KB would be 50 MB to keep, compare and send."""
    note = {"metadata": {"annotations": {"a": "x" * 100_000}}}
    group = {"engine": "mocker", "nodes": 2, "tensorParallelSize": 2, "replicas": 500}
    assert len(render(pipeline({"components": [group]}))) > 1000
    with pytest.raises(RenderError, match="more than 8 MiB together: ask for fewer groups"):
        render(pipeline({"components": [{**group, "podTemplate": note}]}))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (nested(DEPTH + 1), f"nested more than {DEPTH} levels deep"),
        (nested(5000), f"nested more than {DEPTH} levels deep"),
        ({"metadata": {"annotations": {"a": "x" * SPEC_BYTES}}}, f"{SPEC_BYTES} at most"),
    ],
)
def test_what_is_too_much_is_not_read(value: Any, said: str) -> None:
    """Neither by the reader, nor kept by the watch's memory; each time with a sentence."""
    found = body({"components": [{"engine": "mocker", "podTemplate": {"spec": value}}]})
    found["metadata"]["resourceVersion"] = "7"
    assert read(found).pipeline is None
    (sentence,) = read(found).problems
    assert said in sentence
    cache = PipelineCache()
    cache.put(found)
    kept = cache.of(Key("serving", "llama"))
    assert kept is not None
    assert "spec" not in kept
    assert kept[REFUSED] == sentence
    assert read(kept).problems == (sentence,)


def test_depth_is_counted_without_recursion() -> None:
    """In Python's values and in JSON alike; brackets within texts are none."""
    for depth in (10, DEPTH, DEPTH + 1, 3 * DEPTH, 9000):
        assert is_deeper(nested(depth)) == (depth > DEPTH)
    assert is_deep(b'{"a":' * 9000 + b"1" + b"}" * 9000)
    assert not is_deep(json.dumps([{"a": "[{" * 500, "b": '\\"[['}] * 300).encode())


def test_what_the_watch_has_told_takes_bounded_room() -> None:
    """Beyond the bound large bodies are asked for, small ones are kept; room comes back."""
    cache, text = PipelineCache(), "x" * (200 << 10)
    for number in range(KEPT_BYTES // len(text) + 20):
        found = body({"model": {"chatTemplate": text}, "components": []}, f"p{number}")
        found["metadata"]["resourceVersion"] = "1"
        cache.put(found)
    small = body(SMALLEST, "small")
    small["metadata"]["resourceVersion"] = "1"
    cache.put(small)
    assert cache.of(Key("serving", "p0"))
    assert cache.of(Key("serving", f"p{number}")) is None
    assert cache.of(Key("serving", "small"))
    assert len(text) > SMALL_BYTES
    cache.gone(Key("serving", "p0"))
    cache.gone(Key("serving", "p1"))
    cache.put(found)
    assert cache.of(Key("serving", f"p{number}"))


def test_what_the_watches_have_told_takes_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is too much, a large pipeline is asked for and still heard of; small ones are kept; room comes back."""
    monkeypatch.setattr(store_module, "KEPT_BYTES", 1 << 20)
    store, kind = ObjectStore(), resource_of("ConfigMap")
    store.live(kind, None, True)

    def told(name: str, number: int, size: int, version: int) -> bool:
        labels = {"dynamo.dev/pipeline": name}
        metadata = {"name": f"{name}-{number}", "namespace": "n", "labels": labels, "resourceVersion": str(version)}
        return bool(store.take(kind, {"metadata": metadata, "data": {"a": "x" * size}}))

    for number in range(20):
        assert told("large", number, 100_000, 1)
    assert told("small", 0, 10, 1)
    assert store.of(kind, Key("n", "large")) is None
    assert len(store.of(kind, Key("n", "small")) or []) == 1
    assert not told("large", 19, 100_000, 2), "no news"
    assert told("large", 19, 100_001, 3)
    for number in range(8, 20):
        store.forget(kind, "n", f"large-{number}")
    assert len(store.of(kind, Key("n", "large")) or []) == 8
    assert told("large", 8, 100_000, 4)
    assert len(store.of(kind, Key("n", "large")) or []) == 9


@pytest.mark.parametrize(
    "status",
    [{"components": [{"name": "x"}]}, {"conditions": [{"type": "Ready"}]}, "text", None, {"components": [{}]}],
)
def test_a_status_of_others_making_counts_for_nothing(status: Any) -> None:
    """Who may write statuses may leave out what the schema lets be left out."""
    assert known_status({"status": status}) == {}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "many"}}}]}},
         "spec.containers[0].resources.limits.cpu"),
        ({"spec": {"initContainers": [{"resources": {"requests": {"memory": True}}}]}},
         "spec.initContainers[0].resources.requests.memory"),
        ({"spec": {"overhead": {"cpu": "1e999999999"}}}, "spec.overhead.cpu"),
        ({"spec": {"volumes": [{"emptyDir": {"sizeLimit": ["1Gi"]}}]}}, "spec.volumes[0].emptyDir.sizeLimit"),
        ({"spec": {"containers": [{"env": [{"valueFrom": {"resourceFieldRef": {"divisor": ""}}}]}]}},
         "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor"),
    ],
)  # fmt: skip
def test_amounts_are_read_before_the_server_stumbles_over_them(template: dict[str, Any], path: str) -> None:
    """It answers 500 without field or value; `dynamo validate` and the status name both."""
    assert [place for place, _ in unreadable(template)] == [path]
    found = body({"components": [{"engine": "mocker", "podTemplate": template}]})
    (sentence,) = read(found).problems
    assert sentence.startswith(f"spec.components[0].podTemplate.{path}: ")
    assert "must be a quantity like 500m" in sentence


@pytest.mark.parametrize("amount", [1, 0.5, "1", "0.5", "500m", "1e3", "1E+2", "40Gi", "-1", ".5", None])
def test_amounts_that_the_server_reads_are_left_alone(amount: Any) -> None:
    """Also numbers with a point, which it takes in a pod template; and what only looks like an amount."""
    template = {"metadata": {"annotations": {"limits": "x"}}, "spec": {"nodeSelector": {"sizeLimit": "lots"},
                "containers": [{"resources": {"limits": {"cpu": amount}}}]}}  # fmt: skip
    assert list(unreadable(template)) == []


def test_a_large_value_is_cut_in_the_sentence() -> None:
    """What was wrong with it, not all of it."""
    found = pipeline(SMALLEST).model_copy()
    template = {"spec": {"overhead": {"cpu": "x" * 100_000}}}
    frontend = found.spec.frontend.model_copy(update={"pod_template": template})
    spec = found.spec.model_copy(update={"frontend": frontend})
    (problem,) = rules.check(found.model_copy(update={"spec": spec}))
    assert len(problem.message) < 200


def test_fields_that_the_server_may_mean_are_named() -> None:
    """It quotes a value, or says of which type it was; of a Secret nothing is added."""
    said = 'failed to convert new object: unable to convert unstructured object: parsing time "x": cannot parse "x"'
    manifest = {"kind": "StatefulSet", "spec": {"when": "x", "n": 1.5, "other": "y"}}
    assert suspects(said, manifest).endswith("; look at spec.when is 'x'")
    whole = "unable to convert unstructured object to apps/v1: cannot convert float64 to int64"
    assert suspects(whole, manifest).endswith("; look at spec.n is 1.5")
    assert suspects(said, {**manifest, "kind": "Secret"}) == said
    assert suspects("range is full", manifest) == "range is full"
