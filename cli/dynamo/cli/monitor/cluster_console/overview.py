"""What the page of a cluster shows, out of live objects. Pure.

Each text is bounded: names and messages are written by whoever has a pipeline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dynamo.cli.cluster.look import amount
from dynamo.cli.cluster.pipelines.events import event_line, event_time
from dynamo.cli.cluster.pipelines.progress import PipelinePhase, progress
from dynamo.cli.cluster.pipelines.tables import engines
from dynamo.operator.kube.resources import PIPELINES
from dynamo.operator.manifests import naming

Live = Mapping[str, Any]
Row = dict[str, Any]
LONGEST_TEXT: Final = 600
LAST_EVENTS: Final = 8
MOST_CONDITIONS: Final = 16
MOST_QUOTAS: Final = 32
_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True)
class ClusterObjects:
    """What was read of a cluster; empty where the user may not see it."""

    pipelines: Sequence[Live] = ()
    pods: Sequence[Live] = ()
    autoscalers: Sequence[Live] = ()
    events: Sequence[Live] = ()
    quotas: Sequence[Live] = ()


def fitted(shown: Row, most: int) -> bytes:
    """Return it as JSON of so many bytes at most: without events where it is too long, then with fewer pipelines."""
    pieces = msgspec.json.encode(shown)
    if len(pieces) > most:
        shown = {**shown, "pipelines": [{**row, "events": []} for row in shown["pipelines"]], "short": True}
        pieces = msgspec.json.encode(shown)
    while len(pieces) > most and shown["pipelines"]:
        shown = {**shown, "pipelines": shown["pipelines"][: len(shown["pipelines"]) // 2], "more": True}
        pieces = msgspec.json.encode(shown)
    return pieces


def overview(objects: ClusterObjects) -> Row:
    """Return pipelines by namespace and name, and the namespaces that have any."""
    scaling = {_target(item): item for item in objects.autoscalers if _scales_a_pipeline(item)}
    events = _events_by_object(objects.events)
    pods = _by_pipeline(objects.pods)
    listed = sorted(objects.pipelines, key=_place)
    rows = [_pipeline(live, pods[_place(live)], scaling.get(_place(live)), events) for live in listed]
    return {"pipelines": rows, "namespaces": _namespaces(rows, objects)}


def _pipeline(live: Live, pods: Sequence[Live], scaler: Live | None, events: Mapping[Any, list[Live]]) -> Row:
    now = progress(live, pods)
    status, metadata = live.get("status") or {}, live["metadata"]
    return {
        "namespace": now.namespace, "name": now.name, "state": str(now.phase), "reason": _short(now.reason),
        "message": _short(now.message), "model": _short(now.model), "url": _short(now.url),
        "engines": ",".join(engines(live)), "available": now.workers[0], "wanted": now.workers[1],
        "created": str(metadata.get("creationTimestamp") or ""),
        "parts": [{"name": part.name, "done": part.done, "text": _short(part.text)} for part in now.parts],
        "conditions": _conditions(status),
        "scaling": None if scaler is None else _scaling(scaler),
        "events": _events(events, now.namespace, now.name, pods, scaler),
    }  # fmt: skip


def _conditions(status: Live) -> list[Row]:
    return [_condition(entry) for entry in (status.get("conditions") or [])[:MOST_CONDITIONS]]


def _condition(entry: Live) -> Row:
    return {
        "type": _short(str(entry.get("type", ""))), "status": str(entry.get("status", "")),
        "reason": _short(str(entry.get("reason", ""))), "message": _short(str(entry.get("message", ""))),
        "since": str(entry.get("lastTransitionTime") or ""),
    }  # fmt: skip


def _scaling(scaler: Live) -> Row:
    """Return what an autoscaler wants, and why; a KEDA ScaledObject makes one, too."""
    spec, status = scaler.get("spec") or {}, scaler.get("status") or {}
    return {
        "by": str(scaler["metadata"]["name"]), "min": spec.get("minReplicas", 1), "max": spec.get("maxReplicas"),
        "current": status.get("currentReplicas"), "desired": status.get("desiredReplicas"),
        "last": str(status.get("lastScaleTime") or ""),
        "conditions": _conditions(status),
    }  # fmt: skip


def _events(
    by_object: Mapping[Any, list[Live]], namespace: str, name: str, pods: Sequence[Live], scaler: Live | None
) -> list[Row]:
    keys = [(namespace, PIPELINES.kind, name), *((namespace, "Pod", str(p["metadata"]["name"])) for p in pods)]
    if scaler is not None:
        keys.append((namespace, "HorizontalPodAutoscaler", str(scaler["metadata"]["name"])))
    told = sorted((event for key in keys for event in by_object.get(key, ())), key=event_time)
    return [{"time": event_time(event), "text": _short(event_line(event))} for event in told[: -LAST_EVENTS - 1 : -1]]


def _events_by_object(events: Iterable[Live]) -> Mapping[Any, list[Live]]:
    found: defaultdict[Any, list[Live]] = defaultdict(list)
    for event in events:
        about = event.get("involvedObject") or {}
        found[(about.get("namespace", ""), about.get("kind", ""), about.get("name", ""))].append(event)
    return found


def _namespaces(rows: Sequence[Row], objects: ClusterObjects) -> list[Row]:
    """Return what each namespace uses: its pipelines, workers, pods and devices, and its quotas."""
    pods: Counter[str] = Counter()
    devices: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pod in objects.pods:
        if (pod.get("status") or {}).get("phase") not in _OVER:
            namespace = str(pod["metadata"].get("namespace", ""))
            pods[namespace] += 1
            devices[namespace].update(_devices(pod))
    quotas: defaultdict[str, list[Row]] = defaultdict(list)
    for quota in objects.quotas:
        quotas[str(quota["metadata"].get("namespace", ""))] += _limits(quota)
    named: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        named[row["namespace"]].append(row)
    return [
        {
            "name": name, "pipelines": len(own), "ready": sum(row["state"] == PipelinePhase.READY for row in own),
            "available": sum(row["available"] for row in own), "wanted": sum(row["wanted"] for row in own),
            "pods": pods[name], "devices": dict(sorted(devices[name].items())), "quotas": quotas[name][:MOST_QUOTAS],
        }
        for name, own in sorted(named.items())
    ]  # fmt: skip


def _devices(pod: Live) -> Counter[str]:
    """Return the devices that a pod asks for: names with a domain, as device plugins have them."""
    asked: Counter[str] = Counter()
    for container in (pod.get("spec") or {}).get("containers") or []:
        limits = (container.get("resources") or {}).get("limits") or {}
        asked.update({name: int(amount(str(many))) for name, many in limits.items() if "/" in name})
    return asked


def _limits(quota: Live) -> list[Row]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [
        {"resource": str(name), "used": str(used.get(name, "0")), "hard": str(hard)}
        for name, hard in sorted((status.get("hard") or {}).items())
    ]


def _by_pipeline(pods: Iterable[Live]) -> defaultdict[tuple[str, str], list[Live]]:
    found: defaultdict[tuple[str, str], list[Live]] = defaultdict(list)
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        found[(str(pod["metadata"].get("namespace", "")), str(labels.get(naming.PIPELINE, "")))].append(pod)
    return found


def _scales_a_pipeline(scaler: Live) -> bool:
    about = (scaler.get("spec") or {}).get("scaleTargetRef") or {}
    group = str(about.get("apiVersion", "")).rpartition("/")[0]
    return about.get("kind") == PIPELINES.kind and group == PIPELINES.group


def _target(scaler: Live) -> tuple[str, str]:
    about = (scaler.get("spec") or {}).get("scaleTargetRef") or {}
    return str(scaler["metadata"].get("namespace", "")), str(about.get("name", ""))


def _place(live: Live) -> tuple[str, str]:
    return str(live["metadata"].get("namespace", "")), str(live["metadata"]["name"])


def _short(text: str) -> str:
    """Return a text of bounded length, without what JSON would write as six characters."""
    text = "".join(character if character.isprintable() else " " for character in text[: 2 * LONGEST_TEXT])
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
