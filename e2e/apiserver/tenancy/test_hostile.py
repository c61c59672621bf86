"""What a tenant with every right on pipelines in its own namespace can do to the others: nothing that they'd notice."""

from __future__ import annotations

import time
import urllib.request
from functools import partial

import pytest
from e2e.apiserver.client import Object, RefusedError, until
from e2e.apiserver.operators import NAMESPACES, Operator
from e2e.apiserver.world import Note, World

from dynamo.operator.kube.resources import PIPELINES, Resource, resource_of

QUOTAS = Resource("v1", "ResourceQuota", "resourcequotas")
SETS = resource_of("StatefulSet")
GROUPS: Object = {"engine": "mocker", "nodes": 2, "tensorParallelSize": 2, "replicas": 512}
HOSTILE = 30
SOON_SECONDS = 15.0
"""A pipeline of somebody else's is made within, on a machine with other work."""


def test_groups_without_end_are_refused(world: World) -> None:
    """1.9 KB asked for 32,021 objects; by one component, by the sum of several, and by `kubectl scale`."""
    many: Object = {"components": [{**GROUPS, "name": f"w{i}", "replicas": 1000} for i in range(16)]}
    for spec in (many, {"components": [{**GROUPS, "replicas": 513}]}, {"components": [
        {**GROUPS, "name": name, "replicas": 257} for name in ("a", "b")]}):  # fmt: skip
        with pytest.raises(RefusedError, match="1024 pods at most"):
            world.pipeline("many", spec)
    world.pipeline("most", {"components": [{k: v for k, v in GROUPS.items() if k != "replicas"}], "replicas": 512})
    scale = {"spec": {"replicas": 513}}
    with pytest.raises(RefusedError, match="1024 pods at most"):
        world.admin.merge(PIPELINES, world.namespace, "most", scale, "scale")


def test_what_nobody_can_read_hinders_nobody(world: World, note: Note) -> None:
    """Nested 9,900 times, a megabyte of podTemplate, a million characters of annotations, a status of others' making:
    told where it can be told; the watch isn't cut off, and a pipeline beside them is served."""
    operator = world.operators.start()
    nested(world, "deep", 9900)
    nested(world, "deeper-than-meant", 70)
    template = {"metadata": {"annotations": {"a": "x" * 900_000}}}
    world.pipeline("large", {"components": [{"engine": "mocker", "podTemplate": template}]})
    noted = {"metadata": {"annotations": {f"n{i}": "x" * 2500 for i in range(100)}}}
    world.pipeline("noted")
    world.admin.merge(PIPELINES, world.namespace, "noted", noted)
    world.pipeline("foreign")
    world.admin.merge(PIPELINES, world.namespace, "foreign", {"status": {"components": [{"name": "x"}]}}, "status")
    world.pipeline("calm")
    world.until_ready("calm")
    world.until_ready("noted")
    world.until_ready("foreign")
    for name, said in (("deep", "nested more than"), ("deeper-than-meant", "nested more than"), ("large", "at most")):
        until(f"{name} is told", partial(stalled, world, name, "reason"))
        assert stalled(world, name, "reason") == "InvalidSpec"
        assert said in stalled(world, name, "message")
    again = world.operators.start("again", leads=False)
    assert operator.end() == 0
    until("it leads", lambda: world.operators.holder() == "again")
    world.pipeline("calm", {"components": [{"engine": "mocker", "replicas": 3}]})
    until("it is followed", lambda: world.ready("calm") and world.live("calm")["status"]["workers"] == "3/3")
    for one in (operator, again):
        assert one.defects() == []
        assert "the watch of pipelines failed" not in one.said()
    note("bytes of the operator's memory beside what nobody can read", resident(again))
    world.admin.merge(PIPELINES, world.namespace, "deep", {"spec": {"components": [{"engine": "mocker"}]}})
    world.until_ready("deep")


def test_many_large_pipelines_delay_nobody(world: World, note: Note) -> None:
    """Thirty of 512 groups each, which a quota refuses, again and again; another namespace's pipelines beside them."""
    operator = world.operators.start()
    other = f"{world.namespace}-calm"
    world.admin.apply(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    try:
        alone = [made(world, other, f"alone-{i}") for i in range(3)]
        hard: Object = {"count/statefulsets.apps": "0", "count/services": "40"}
        world.admin.apply(QUOTAS, {
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": world.namespace},
            "spec": {"hard": hard},
        })  # fmt: skip
        for number in range(HOSTILE):
            world.pipeline(f"many-{number}", {"components": [GROUPS]})
        among = [made(world, other, f"among-{i}") for i in range(5)]
        note("seconds until a pipeline is made, alone and among large ones", [round(s, 2) for s in (*alone, *among)])
        assert max(among) < SOON_SECONDS
        assert world.operators.holder() == "one", "the lease is kept"
        assert operator.defects() == []
        note("bytes of the operator's memory with thirty large ones", resident(operator))
        assert resident(operator) < 400 << 20
    finally:
        world.admin.code("DELETE", NAMESPACES.path(None, other))


def made(world: World, namespace: str, name: str) -> float:
    """Seconds from a pipeline to the last of its children."""
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": PIPELINES.api_version, "kind": PIPELINES.kind, "metadata": metadata}
    begun = time.monotonic()
    world.admin.apply(PIPELINES, {**body, "spec": {"components": [{"engine": "mocker"}]}})
    until(f"{name} is made", lambda: any(item["metadata"]["name"].startswith(f"{name}-worker")
                                         for item in world.admin.items(SETS, namespace)))  # fmt: skip
    return time.monotonic() - begun


def stalled(world: World, name: str, field: str) -> str:
    """Of the condition; asked by kubectl, since Python can't read what is so deep either."""
    path = f'-o=jsonpath={{.status.conditions[?(@.type=="Stalled")].{field}}}'
    return world.plane.kubectl("get", "dynamopipeline", name, "-n", world.namespace, path)


def nested(world: World, name: str, depth: int) -> None:
    """A pod template of mappings within each other, as text: no client of ours could write it."""
    metadata = f'{{"name": "{name}", "namespace": "{world.namespace}"}}'
    template = '{"a":' * depth + "1" + "}" * depth
    head = f'"apiVersion": "{PIPELINES.api_version}", "kind": "{PIPELINES.kind}", "metadata": {metadata}'
    text = f'{{{head}, "spec": {{"components": [{{"engine": "mocker", "podTemplate": {{"spec": {template}}}}}]}}}}'
    headers = {"Authorization": f"Bearer {world.admin.token}", "Content-Type": "application/json"}
    url = world.admin.server + PIPELINES.path(world.namespace)
    request = urllib.request.Request(url, text.encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=60, context=world.admin.context) as answer:
        assert answer.status == 201


def resident(operator: Operator) -> int:
    """Bytes of its memory."""
    with open(f"/proc/{operator.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096
