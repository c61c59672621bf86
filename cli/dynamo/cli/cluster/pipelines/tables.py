"""Pipelines as tables. Pure; time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from dynamo.cli.cluster.pipelines.progress import PipelinePhase, PipelineProgress, condition, phase_of
from dynamo.cli.tables import age
from dynamo.operator.api.conditions import Reason, Type

Live = Mapping[str, Any]
COLUMNS: Final = ("NAME", "READY", "REASON", "MODEL", "ENGINE", "WORKERS", "URL", "AGE")
WIDE: Final = ("TP", "ROUTER", "GENERATION")
"""As `kubectl get dynamopipelines` has them; a test compares with the CRD."""

Row = tuple[str, ...]


def rows(pipelines: Iterable[Live], now: datetime, *, wide: bool, namespaces: bool) -> list[Row]:
    """Return the head, then a row for each."""
    first = ("NAMESPACE",) if namespaces else ()
    table: list[Row] = [(*first, *COLUMNS, *(WIDE if wide else ()))]
    for pipeline in pipelines:
        metadata = pipeline["metadata"]
        place = (str(metadata.get("namespace", "")),) if namespaces else ()
        table.append((*place, *_row(pipeline, now), *(_more(pipeline) if wide else ())))
    return table


def _row(pipeline: Live, now: datetime) -> Row:
    status, metadata = pipeline.get("status") or {}, pipeline["metadata"]
    ready, reason = readiness(pipeline)
    return (
        str(metadata["name"]),
        ready,
        reason,
        status.get("model") or "-",
        status.get("engines") or ",".join(engines(pipeline)) or "-",
        status.get("workers") or "-",
        status.get("url") or "-",
        since(metadata.get("creationTimestamp"), now),
    )


def readiness(pipeline: Live) -> tuple[str, str]:
    """Return READY and REASON; what was said of an older generation isn't repeated."""
    match phase_of(pipeline):
        case PipelinePhase.DELETED:
            return "False", "Deleting"
        case PipelinePhase.UNSEEN:
            return "Unknown", str(Reason.PENDING)
    ready = condition(pipeline, Type.READY)
    return str(ready.get("status", "Unknown")), str(ready.get("reason", "-"))


def engines(pipeline: Live) -> list[str]:
    """Return the engines of all components, each once."""
    names = (str(c.get("engine", "")) for c in pipeline.get("spec", {}).get("components") or [])
    return list(dict.fromkeys(filter(None, names)))


def _more(pipeline: Live) -> Row:
    spec, metadata = pipeline.get("spec", {}), pipeline["metadata"]
    sizes = [str(c.get("tensorParallelSize", 1)) for c in spec.get("components") or []]
    router = ((spec.get("frontend") or {}).get("router") or {}).get("mode") or "-"
    return ",".join(sizes), str(router), str(metadata.get("generation", "-"))


def since(text: str | None, now: datetime) -> str:
    """Return how old something is, from a Kubernetes time."""
    if not text:
        return "-"
    return age((now - datetime.fromisoformat(text.replace("Z", "+00:00"))).total_seconds())


def component_rows(pipeline: Live, progress: PipelineProgress) -> list[Row]:
    """Return the parts of one pipeline; empty where no operator has looked yet."""
    if not progress.parts:
        return []
    counts = {c["name"]: c for c in (pipeline.get("status") or {}).get("components") or []}
    result: list[Row] = [("COMPONENT", "STATE", "REVISION", "")]
    for part in progress.parts:
        revision = str(counts.get(part.name, {}).get("revision") or "-")
        result.append((part.name, "ready" if part.done else "waits", revision, part.text))
    return result


def detail(pipeline: Live, progress: PipelineProgress, now: datetime, *, wide: bool) -> Iterator[Sequence[Row] | str]:
    """Yield one pipeline: its row, its parts, and what it says of itself."""
    yield rows([pipeline], now, wide=wide, namespaces=True)
    parts = component_rows(pipeline, progress)
    if parts:
        yield ""
        yield parts
    if progress.message and progress.phase is not PipelinePhase.READY:
        yield ""
        yield f"{progress.reason}: {progress.message}"
    elif progress.phase is PipelinePhase.UNSEEN:
        yield ""
        yield "No operator has looked at this generation yet."


def bare(live: Live) -> dict[str, Any]:
    """Return the object for people and scripts: without the account of who owns which field."""
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    return {**live, "metadata": metadata}
