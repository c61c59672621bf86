"""The status of a pipeline: what a plan wants against what was observed. Pure; time is an argument.

`Ready` is true when, for this generation, every part has all it should and nothing old is
left. A worker's pod is ready once every frontend can route to it; one that they can't reach any
more is `Observed.unreachable` and serves nobody. The same facts give the same status, so that
at rest nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dynamo.operator.api.conditions import (
    BEGINNING,
    ON_THE_WAY,
    WORST_FIRST,
    Fact,
    Reason,
    Trouble,
    Type,
    conditions,
    reason_of,
)
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.observe import Observed, Waiting
from dynamo.operator.manifests import naming
from dynamo.operator.plan.rollout import RevisionSet
from dynamo.operator.plan.workload import Plan, Workload

_ACCEPTED = "the operator has seen this generation and starts to apply it"

_REMARKS = 3
"""Remarks of workers that stand in one message."""

TERM = "term"
"""Field of the status: which leader wrote it last; see `kube/leader_election.py`."""
OPERATOR = "operator"
"""Field of the status: the installation that serves the pipeline."""


def first_status(pipeline: DynamoPipeline, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the first status: without any condition, kstatus and Argo CD would take the object for done."""
    facts = [
        Fact(Type.READY, "Unknown", Reason.PENDING, _ACCEPTED),
        Fact(Type.RECONCILING, "True", Reason.PENDING, _ACCEPTED),
    ]
    return {**previous, **_head(pipeline, facts, previous, now)}


def is_on_its_way(current: Mapping[str, Any]) -> bool:
    """Return whether a status says that what was asked for is not all there yet."""
    return any(c["type"] == Type.RECONCILING for c in current.get("conditions", []))


def failed_status(pipeline: DynamoPipeline, trouble: Trouble, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return the status of a pipeline that can't be reconciled; its children, and their counts, stay as they are."""
    facts = [Fact(Type.READY, "False", trouble.reason, trouble.message), _trouble_fact(trouble)]
    return {**previous, **_head(pipeline, facts, previous, now)}


def status(
    pipeline: DynamoPipeline,
    plan: Plan,
    observed: Observed,
    previous: Mapping[str, Any],
    now: str,
    *,
    url: str,
    trouble: Trouble | None = None,
) -> dict[str, Any]:
    """Return the whole status; equal to `previous` where nothing that matters changed."""
    counts = [_component(workload, observed) for workload in plan.workers]
    facts = _facts(plan, observed, counts, trouble)
    body = {
        **_head(pipeline, facts, previous, now),
        "url": url,
        "model": plan.model,
        "namespace": plan.namespace,
        "engines": ",".join(dict.fromkeys(str(c.engine) for c in pipeline.spec.components)),
        "tensorParallel": ",".join(dict.fromkeys(str(c.tensor_parallel_size) for c in pipeline.spec.components)),
        "workers": f"{sum(c['availableReplicas'] for c in counts)}/{sum(c['replicas'] for c in counts)}",
        "components": counts,
    }
    return body | _scale(pipeline, plan, observed)


def with_term(after: Mapping[str, Any], before: Mapping[str, Any], term: int) -> dict[str, Any]:
    """Return a status that is about to be written with this leader's term; that alone is no reason to write."""
    same = {**after, **({TERM: before[TERM]} if TERM in before and TERM not in after else {})}
    return same if same == before or not term else {**after, TERM: term}


def is_progress(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether only counts and messages differ: nothing that anybody waits for, or that we read again."""
    return _lasting(before) == _lasting(after)


def _lasting(body: Mapping[str, Any]) -> dict[str, Any]:
    awaited = (Type.READY, Type.RECONCILING, Type.STALLED)
    conditions = {
        (c["type"], c["status"], "" if c["reason"] in ON_THE_WAY else c["reason"])
        for c in body.get("conditions", [])
        if c["type"] in awaited
    }
    components = [{k: c.get(k) for k in ("name", "revision", "replicas")} for c in body.get("components", [])]
    rest = {k: v for k, v in body.items() if k not in ("workers", "replicas")}
    return {**rest, "conditions": conditions, "components": components}


def _head(pipeline: DynamoPipeline, facts: Iterable[Fact], previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    generation = int((pipeline.metadata.model_extra or {}).get("generation", 0))
    entries = conditions(facts, previous.get("conditions", []), generation, now)
    return {"observedGeneration": generation, "conditions": entries}


def _component(workload: Workload, observed: Observed) -> dict[str, Any]:
    own = [s for s in observed.sets if s.component == workload.component]
    current = next((s for s in own if s.revision == workload.revision), None)
    routable = sum(len(s.ready) for s in own)
    return {
        "name": workload.component,
        "revision": workload.revision,
        "replicas": workload.replicas,
        "updatedReplicas": len(current.ready) if current else 0,
        "readyReplicas": routable + observed.unreachable.get(workload.component, 0),
        "availableReplicas": routable,
    }


def _scale(pipeline: DynamoPipeline, plan: Plan, observed: Observed) -> dict[str, Any]:
    """Return what `/scale` reads: the first component that follows spec.replicas, one pod per worker."""
    following = {c.name for c in pipeline.spec.components if c.replicas is None}
    workload = next((w for w in plan.workers if w.component in following), None)
    if workload is None:
        return {}
    labels = naming.part_selector(pipeline.name, workload.component)
    if workload.nodes > 1:
        labels[naming.POD_INDEX] = "0"
    existing = sum(s.living for s in observed.sets if s.component == workload.component)
    return {"replicas": existing, "selector": ",".join(f"{k}={v}" for k, v in labels.items())}


def _facts(plan: Plan, observed: Observed, counts: Sequence[Mapping[str, Any]], trouble: Trouble | None) -> list[Fact]:
    frontend = _frontend_fact(plan.frontend, observed)
    workers = _workers_fact(plan, observed, counts)
    ready = _ready_fact(frontend, workers, trouble, observed)
    facts = [ready, _available_fact(observed, counts), frontend, workers, _loaded_fact(plan, observed, counts)]
    if trouble is not None:
        return [*facts, _trouble_fact(trouble)]
    if ready.status != "True":
        facts.append(Fact(Type.RECONCILING, "True", ready.reason, ready.message))
    return facts


def _trouble_fact(trouble: Trouble) -> Fact:
    kind = Type.STALLED if trouble.final else Type.RECONCILING
    return Fact(kind, "True", trouble.reason, trouble.message)


def _ready_fact(frontend: Fact, workers: Fact, trouble: Trouble | None, observed: Observed) -> Fact:
    nats = observed.nats
    if trouble is not None:
        return Fact(Type.READY, "False", trouble.reason, trouble.message)
    worst = next((part for part in (workers, frontend) if part.status != "True"), None)
    if worst is not None and nats is not None:
        return _without_nats(worst, nats)
    if worst is not None:
        return Fact(Type.READY, "False", worst.reason, worst.message)
    if workers.reason is Reason.SCALED_TO_ZERO:
        return Fact(Type.READY, "True", Reason.SCALED_TO_ZERO, workers.message)
    text = "; ".join(["all parts are ready and the endpoint serves requests", *observed.remarks[:_REMARKS]])
    return Fact(Type.READY, "True", Reason.SERVING, text)


def _without_nats(worst: Fact, nats: Waiting) -> Fact:
    """Return Ready's fact while NATS is away: nothing serves without it, so other pods' states are no cause."""
    reason = reason_of(nats.reason)
    detail = nats.message if reason in BEGINNING else f"{nats.reason}: {nats.message}".removesuffix(": ")
    message = f"the NATS of this namespace is not ready: pod {nats.pod} {detail}; {worst.message}"
    return Fact(Type.READY, "False", worst.reason if reason in BEGINNING else reason, message)


def _available_fact(observed: Observed, counts: Sequence[Mapping[str, Any]]) -> Fact:
    """Return whether a request that comes now finds a frontend, and a worker of every component behind it."""
    if observed.frontend is None or not observed.frontend.ready:
        return Fact(Type.AVAILABLE, "False", Reason.NO_FRONTEND, "no frontend is ready")
    without = [str(c["name"]) for c in counts if not c["availableReplicas"]]
    if without:
        named = f"component{'s' if len(without) > 1 else ''} {', '.join(without)}"
        return Fact(Type.AVAILABLE, "False", Reason.NO_WORKERS, f"{named}: no reachable workers")
    return Fact(Type.AVAILABLE, "True", Reason.AVAILABLE, "requests are served")


def _frontend_fact(workload: Workload, observed: Observed) -> Fact:
    facts = observed.frontend
    if facts is not None and facts.done and facts.wanted == workload.replicas:
        if not facts.wanted:
            return Fact(Type.FRONTEND_READY, "True", Reason.SCALED_TO_ZERO, "scaled to zero")
        return Fact(Type.FRONTEND_READY, "True", Reason.ALL_READY, f"{facts.ready} of {facts.wanted} ready")
    ready = facts.ready if facts else 0
    counted = f"{workload.component}: {ready} of {workload.replicas} ready"
    fallback = Reason.ROLLING_OUT if facts and ready >= workload.replicas else Reason.STARTING
    return _unready(Type.FRONTEND_READY, counted, observed.waiting_for(workload.component), fallback)


def _workers_fact(plan: Plan, observed: Observed, counts: Sequence[Mapping[str, Any]]) -> Fact:
    unfinished = list(_unfinished(plan, observed.sets, counts))
    desired = sum(c["replicas"] for c in counts)
    if not unfinished:
        if not desired:
            return Fact(Type.WORKERS_READY, "True", Reason.SCALED_TO_ZERO, "scaled to zero")
        return Fact(Type.WORKERS_READY, "True", Reason.ALL_READY, f"{desired} of {desired} ready")
    waiting = [w for component, _, _ in unfinished for w in observed.waiting_for(component)]
    message = "; ".join(text for _, text, _ in unfinished)
    return _unready(Type.WORKERS_READY, message, waiting, unfinished[0][2])


def _loaded_fact(plan: Plan, observed: Observed, counts: Sequence[Mapping[str, Any]]) -> Fact:
    """Return whether the model loads: a worker of the wanted revision serves only with its model loaded."""
    wanted = [w.component for w in plan.workers if w.replicas]
    without = [str(c["name"]) for c in counts if c["name"] in wanted and not c["updatedReplicas"]]
    if not wanted:
        return Fact(Type.MODEL_LOADED, "False", Reason.SCALED_TO_ZERO, "scaled to zero")
    if not without:
        return Fact(Type.MODEL_LOADED, "True", Reason.LOADED, f"{plan.model} is loaded by workers of this revision")
    revisions = {w.component: w.revision for w in plan.workers}
    own = [w for name in without for w in observed.waiting_for(name) if f"-{name}-{revisions[name]}-" in w.pod]
    message = f"no worker of {', '.join(without)} has loaded {plan.model} yet"
    return _unready(Type.MODEL_LOADED, message, own, Reason.STARTING)


def _unfinished(
    plan: Plan, sets: Sequence[RevisionSet], counts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str, Reason]]:
    """Yield components that aren't done: their name, progress and reason."""
    for workload, count in zip(plan.workers, counts, strict=True):
        old = [s for s in sets if s.component == workload.component and s.revision != workload.revision]
        current = (workload.component, workload.revision)
        extra = next((s.living - workload.replicas for s in sets if (s.component, s.revision) == current), 0)
        name, desired = workload.component, workload.replicas
        if old:
            updated = f"{count['updatedReplicas']} of {desired} of revision {workload.revision} ready"
            yield name, f"{name}: {updated}, older revisions remain", Reason.ROLLING_OUT
        elif count["availableReplicas"] < desired:
            yield name, f"{name}: {count['availableReplicas']} of {desired} ready", Reason.STARTING
        elif extra > 0:
            yield name, f"{name}: {extra} more than the {desired} wanted are running", Reason.SCALING
    gone = {s.component for s in sets} - {w.component for w in plan.workers}
    for name in sorted(gone):
        yield name, f"{name}: removed from the spec; its workers are stopping", Reason.SCALING


def _unready(kind: Type, counted: str, waiting: Sequence[Waiting], fallback: Reason) -> Fact:
    """Return the worst pod's reason; mere starting is no news while something rolls."""
    worst = min(waiting, key=lambda w: (WORST_FIRST.index(reason_of(w.reason)), w.pod), default=None)
    if worst is None:
        return Fact(kind, "False", fallback, counted)
    reason = reason_of(worst.reason)
    detail = worst.message if reason in BEGINNING else f"{worst.reason}: {worst.message}".removesuffix(": ")
    is_no_news = reason is Reason.STARTING or (reason in BEGINNING and fallback is not Reason.STARTING)
    return Fact(kind, "False", fallback if is_no_news else reason, f"{counted}; pod {worst.pod} {detail}")
