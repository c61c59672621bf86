"""How far a pipeline is, read out of its status: for this generation, never for an older one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dynamo.operator.api.conditions import Type
from dynamo.operator.cluster.observe import label, why
from dynamo.operator.manifests import naming

Live = Mapping[str, Any]


class PipelinePhase(StrEnum):
    """Phase of a pipeline: what a user wants to know first."""

    UNSEEN = "unseen"
    """No operator has looked at this generation."""
    WAITING = "waiting"
    READY = "ready"
    STALLED = "stalled"
    """It will not become ready by waiting."""
    DELETED = "deleted"


@dataclass(frozen=True)
class Part:
    """The frontends, or the workers of one component."""

    name: str
    done: bool
    text: str
    """`1 of 2 ready`, and why not more."""


@dataclass(frozen=True)
class PipelineProgress:
    """One pipeline at one moment."""

    name: str
    namespace: str
    phase: PipelinePhase
    reason: str = ""
    message: str = ""
    parts: tuple[Part, ...] = ()
    model: str = ""
    url: str = ""
    workers: tuple[int, int] = field(default=(0, 0))
    """Routable and wanted."""


def progress(pipeline: Live, pods: Iterable[Live] = ()) -> PipelineProgress:
    """Return how far a pipeline is, from the live object, and its pods where they may be seen."""
    status = pipeline.get("status") or {}
    phase, ready = phase_of(pipeline), condition(pipeline, Type.READY)
    components = status.get("components") or []
    metadata = pipeline["metadata"]
    waiting = waiting_by_component(pods)
    return PipelineProgress(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        phase=phase,
        reason=str(ready.get("reason", "")) if phase is not PipelinePhase.UNSEEN else "",
        message=str(ready.get("message", "")) if phase is not PipelinePhase.UNSEEN else "",
        parts=tuple(_parts(pipeline, waiting)) if phase is not PipelinePhase.UNSEEN else (),
        model=status.get("model") or "",
        url=status.get("url") or "",
        workers=(sum(c.get("availableReplicas", 0) for c in components), sum(c.get("replicas", 0) for c in components)),
    )


def phase_of(pipeline: Live) -> PipelinePhase:
    """Return the phase; conditions of an older generation say nothing about this one."""
    if pipeline["metadata"].get("deletionTimestamp"):
        return PipelinePhase.DELETED
    ready = condition(pipeline, Type.READY)
    if not ready:
        return PipelinePhase.UNSEEN
    if condition(pipeline, Type.STALLED).get("status") == "True":
        return PipelinePhase.STALLED
    return PipelinePhase.READY if ready.get("status") == "True" else PipelinePhase.WAITING


def condition(pipeline: Live, kind: Type) -> Live:
    """Return a condition that speaks of this generation; empty where there is none."""
    generation = pipeline["metadata"].get("generation", 0)
    status = pipeline.get("status") or {}
    if status.get("observedGeneration", 0) < generation:
        return {}
    for entry in status.get("conditions") or []:
        if entry.get("type") == kind and entry.get("observedGeneration", generation) >= generation:
            return dict(entry)
    return {}


def waiting_by_component(pods: Iterable[Live]) -> dict[str, str]:
    """Return the first pod of each component that doesn't serve, with Kubernetes' reason."""
    reasons: dict[str, str] = {}
    for pod in sorted(pods, key=lambda p: str(p["metadata"]["name"])):
        text = waiting_text(pod)
        if text:
            reasons.setdefault(label(pod, naming.COMPONENT), text)
    return reasons


def waiting_text(pod: Live) -> str:
    """Return why a pod doesn't serve, in a few words; empty where it does."""
    waits = why(pod)
    if waits is None:
        return ""
    if waits.reason == "Starting":
        return f"pod {waits.pod} {waits.message}"
    return f"pod {waits.pod} {waits.reason}: {waits.message}".removesuffix(": ")


def _parts(pipeline: Live, waiting: Mapping[str, str]) -> Iterable[Part]:
    front = condition(pipeline, Type.FRONTEND_READY)
    if front:
        done = front.get("status") == "True"
        yield Part(naming.FRONTEND, done, str(front.get("message", "")).removeprefix(f"{naming.FRONTEND}: "))
    for component in (pipeline.get("status") or {}).get("components") or []:
        yield _worker_part(component, waiting)


def _worker_part(component: Live, waiting: Mapping[str, str]) -> Part:
    name, wanted = str(component.get("name", "")), component.get("replicas", 0)
    routable, updated = component.get("availableReplicas", 0), component.get("updatedReplicas", 0)
    done = routable >= wanted and updated >= wanted
    text = f"{routable} of {wanted} ready"
    if routable >= wanted > updated:
        text = f"{updated} of {wanted} of the new revision ready"
    if not done and name in waiting:
        text += f"; {waiting[name]}"
    return Part(name, done, text)


def failure(progress: PipelineProgress, seconds: float) -> str:
    """Return why a wait ended without success."""
    where = f"{progress.namespace}/{progress.name}"
    match progress.phase:
        case PipelinePhase.STALLED:
            return f"{where} will not become ready: {progress.reason}: {progress.message}"
        case PipelinePhase.DELETED:
            return f"{where} was deleted while this waited"
        case PipelinePhase.UNSEEN:
            return (
                f"{where}: no operator has looked at it for {seconds:.0f} s: is the platform installed and running? "
                "`dynamo install` installs it, or repairs it"
            )
    return f"{where} isn't ready after {seconds:.0f} s: {progress.reason}: {progress.message}"
