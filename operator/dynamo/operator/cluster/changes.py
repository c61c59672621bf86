"""The writes that bring a cluster one step closer to a plan: `changes(pipeline, plan, cluster, live)`. Pure.

The reconciler carries them out in order, sees what happens, and asks again; none are left
when everything is as wanted. It may be killed between any two of them: nothing is
remembered, all is computed again from the spec and the live objects. Only objects that the
pipeline controls are touched, and orphans with its labels (`kubectl delete --cascade=orphan`,
then a new one of that name, keeps serving); a name that somebody else has is a conflict.

Whether a live object is as wanted says `differences(intent, live)`, so that at rest nothing is written. It is a subset
comparison by the rules of server-side apply: what the API server or others added isn't ours to judge (an apply would
not remove it either), lists with keys compare item by item, other lists as a whole. It tolerates what comes back in
another form: equal quantities, and empty values that are left out. A field that was dropped from the intent shows in
the digest that `render` writes into an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from dynamo.operator.api.v1alpha1 import KIND, DynamoPipeline
from dynamo.operator.cluster.observe import Live, Observed, deployment_facts, label
from dynamo.operator.cluster.writes import Apply, Change, Conflict, Delete, Resize, Target
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings, Manifest
from dynamo.operator.manifests.render import manifests
from dynamo.operator.plan.rollout import RevisionSet, Scale, Start, Stop, converge
from dynamo.operator.plan.workload import Plan

KEPT_KINDS = frozenset({"PersistentVolumeClaim"})
"""Never removed by an edit of the spec: downloaded models go with the pipeline."""

ADOPTED_KINDS = KEPT_KINDS | {
    "ConfigMap", "Deployment", "HTTPRoute", "Ingress", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service",
    "ServiceAccount", "StatefulSet",
}  # fmt: skip
"""What we make. Others bear our labels without an owner too: Endpoints copy those of their Service."""


def changes(
    pipeline: DynamoPipeline,
    plan: Plan,
    cluster: ClusterSettings,
    live: Sequence[Live],
    sets: Sequence[RevisionSet],
    also: Sequence[Manifest] = (),
) -> list[Change]:
    """Return what to write now, in order; `sets` is from `observe`, `also` is what else should be there.

    `live` has every object with the pipeline's label, and those found under a wanted name;
    `plan` is the one out of `with_images`.
    """
    uid = str((pipeline.metadata.model_extra or {}).get("uid", ""))
    actions = converge(plan, sets)
    wanted = [
        *also,
        *manifests(pipeline, plan=plan, cluster=cluster, replicas=replicas_now(plan, sets), lost=_lost(plan, sets)),
    ]
    todo: list[Change] = [*applied(wanted, live, pipeline.name, uid)]
    ours = [o for o in live if belongs(o, pipeline.name, uid) and not o["metadata"].get("deletionTimestamp")]
    for action in actions:
        if isinstance(action, Scale) and action.revision != _current(plan, action.component):
            todo += _resized(ours, action)
    keys = {_key(m) for m in wanted}
    kept = _kept_revisions(plan, sets)
    return [*todo, *(Delete(_target(o)) for o in ours if _superfluous(o, keys, plan, kept))]


def _lost(plan: Plan, sets: Sequence[RevisionSet]) -> Mapping[str, int]:
    """Return, by component, how many lost workers have others that take their place."""
    goals = {(w.component, w.revision): w.replicas for w in plan.workers}
    return {
        s.component: max(0, min(s.replicas - s.living, s.replicas - goals[s.component, s.revision]))
        for s in sets
        if (s.component, s.revision) in goals
    }


def replicas_now(plan: Plan, sets: Sequence[RevisionSet]) -> Mapping[str, int]:
    """Return how many workers of the wanted revision there may be at this moment, by component."""
    current = {s.component: s.replicas for s in sets if s.revision == _current(plan, s.component)}
    for action in converge(plan, sets):
        if isinstance(action, Start):
            current[action.workload.component] = action.replicas
        elif isinstance(action, Scale) and action.revision == _current(plan, action.component):
            current[action.component] = action.replicas
    return current


def since(observed: Observed, todo: Sequence[Change], deployment: Live | None) -> Observed:
    """Return what still holds after these writes: the frontends' counts are of the template before.

    `deployment` is the frontends' as the server answered, where it was written.
    """
    if deployment is not None:
        return replace(observed, frontend=deployment_facts(deployment))
    is_late = any(isinstance(change, Apply) and change.manifest["kind"] == "Deployment" for change in todo)
    if observed.frontend is None or not is_late:
        return observed
    return replace(observed, frontend=replace(observed.frontend, seen=False))


def belongs(live: Live, name: str, uid: str) -> bool:
    """Return whether an object is this pipeline's, or was made for one of this name and has no owner now."""
    controller = _controller(live)
    if controller is not None:
        return bool(controller.get("uid") == uid)
    ours = label(live, "app.kubernetes.io/managed-by") == naming.MANAGER and label(live, naming.PIPELINE) == name
    return ours and live["kind"] in ADOPTED_KINDS


def _controller(live: Live) -> Mapping[str, Any] | None:
    owners = live["metadata"].get("ownerReferences", [])
    return next((o for o in owners if o.get("controller")), None)


def _is_predecessors(live: Live, name: str) -> bool:
    """Return whether it belongs to a deleted pipeline of this name: it is about to be collected."""
    controller = _controller(live) or {}
    return (controller.get("kind"), controller.get("name")) == (KIND, name)


def applied(wanted: Sequence[Manifest], live: Sequence[Live], name: str, uid: str) -> Iterator[Apply | Conflict]:
    """Yield the writes after which `live` has what is wanted; none where a predecessor's object has yet to go."""
    there = {_key(o): o for o in live}
    for manifest in wanted:
        existing = there.get(_key(manifest))
        if existing is None:
            yield Apply(manifest)
        elif not belongs(existing, name, uid):
            if not _is_predecessors(existing, name):
                yield Conflict(manifest["kind"], manifest["metadata"]["name"])
        elif not existing["metadata"].get("deletionTimestamp"):
            paths = differences(manifest, existing)
            if paths:
                metadata = existing["metadata"]
                yield Apply(manifest, metadata.get("uid"), tuple(paths), metadata.get("resourceVersion", ""))


def _resized(ours: Sequence[Live], action: Scale) -> Iterator[Change]:
    """Yield what shrinks an old revision at its end: fewer pods of its StatefulSet, or fewer groups."""
    for item in ours:
        if (label(item, naming.COMPONENT), label(item, naming.REVISION)) != (action.component, action.revision):
            continue
        group = label(item, naming.GROUP)
        if group.isdecimal() and int(group) >= action.replicas:
            yield Delete(_target(item))
        elif not group and item["kind"] == "StatefulSet" and item["spec"].get("replicas", 1) != action.replicas:
            yield Resize(_target(item), action.replicas)


def _kept_revisions(plan: Plan, sets: Sequence[RevisionSet]) -> frozenset[tuple[str, str]]:
    """Return the old revisions that still have to serve."""
    stopped = {(a.component, a.revision) for a in converge(plan, sets) if isinstance(a, Stop)}
    return frozenset((s.component, s.revision) for s in sets) - stopped


def _superfluous(live: Live, wanted: set[tuple[str, str]], plan: Plan, kept: frozenset[tuple[str, str]]) -> bool:
    if _key(live) in wanted or live["kind"] in KEPT_KINDS:
        return False
    component, revision = label(live, naming.COMPONENT), label(live, naming.REVISION)
    return revision == _current(plan, component) or (component, revision) not in kept


def _current(plan: Plan, component: str) -> str | None:
    return next((w.revision for w in plan.workloads if w.component == component), None)


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["kind"], item["metadata"]["name"]


def _target(live: Live) -> Target:
    metadata = live["metadata"]
    which = metadata.get("uid", ""), metadata.get("resourceVersion", "")
    return Target(live["apiVersion"], live["kind"], metadata["name"], *which)


def is_creation(change: Change) -> bool:
    """Return whether the server refuses it where the name exists; all else must not be judged by an old view."""
    return isinstance(change, Apply) and change.uid is None


def batches(todo: Sequence[Change]) -> list[list[Change]]:
    """Yield what may be written at the same time: what pods need, then what makes pods, then the rest in turn."""
    groups: list[list[Change]] = []
    last: object = None
    for change in todo:
        step = change.manifest["kind"] in _MAKES_PODS if isinstance(change, Apply) else None
        if groups and step is not None and step == last:
            groups[-1].append(change)
        else:
            groups.append([change])
        last = step
    return groups


_MAKES_PODS = ("StatefulSet", "Deployment")


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_AMOUNTS: Final = frozenset({"requests", "limits"})
_SUFFIXES: Final[Mapping[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_NEVER_LEFT_OUT: Final = frozenset(
    {"replicas", "maxSurge", "maxUnavailable", "automountServiceAccountToken", "enableServiceLinks"}
    | {"allowPrivilegeEscalation", "terminationGracePeriodSeconds"}
)
"""Fields where the API server distinguishes zero and false from absent."""
_MAPS: Final = _AMOUNTS | {"annotations", "labels", "nodeSelector", "matchLabels", "data"}
"""Empty, they are left out; an empty object (`emptyDir: {}`) means something."""


def differences(intent: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return the paths of fields that aren't as wanted; empty where nothing needs to be written."""
    return list(_object(intent, live, ""))


def matches(intent: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether nothing needs to be written."""
    return next(_object(intent, live, ""), None) is None


def quantity(text: str | int | float) -> Decimal | None:
    """Return the number that a Kubernetes quantity stands for; None where it isn't a quantity."""
    raw = str(text)
    suffix = next((s for s in (raw[-2:], raw[-1:]) if s in _SUFFIXES), "")
    try:
        return Decimal(raw.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    except InvalidOperation:
        return None


def _object(intent: Mapping[str, Any], live: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, wanted in intent.items():
        place = f"{path}.{name}" if path else name
        if name in _AMOUNTS and isinstance(wanted, dict) and isinstance(live.get(name), dict):
            yield from _amounts(wanted, live[name], place)
        elif name == "sizeLimit" and name in live:
            yield from () if _same_amount(wanted, live[name]) else (place,)
        elif name not in live:
            yield from () if _left_out(name, wanted) else (place,)
        else:
            yield from _value(wanted, live[name], name, place)


def _value(wanted: Any, live: Any, name: str, path: str) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(live, dict):
        yield from _object(wanted, live, path)
    elif isinstance(wanted, list) and isinstance(live, list):
        yield from _list(wanted, live, name, path)
    elif wanted != live or isinstance(wanted, bool) is not isinstance(live, bool):
        yield path


def _list(wanted: Sequence[Any], live: Sequence[Any], name: str, path: str) -> Iterator[str]:
    keys = _list_keys(name, [*wanted, *live])
    if keys is None:
        if len(wanted) != len(live):
            yield path
            return
        for index, (item, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _value(item, other, "", f"{path}[{index}]")
        return
    by_key = {tuple(item.get(k) for k in keys): item for item in live}
    for item in wanted:
        key = tuple(item.get(k) for k in keys)
        place = f"{path}[{','.join(map(str, key))}]"
        if key in by_key:
            yield from _object(item, by_key[key], place)
        else:
            yield place


def _list_keys(name: str, items: Sequence[Any]) -> tuple[str, ...] | None:
    """Return what identifies an item; ports are `port` in a Service, `containerPort` in a container."""
    if not all(isinstance(item, dict) for item in items):
        return None
    if name == "ports":
        return ("name",) if all("name" in item for item in items) else None
    return _KEYS.get(name)


def _amounts(wanted: Mapping[str, Any], live: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, amount in wanted.items():
        if name not in live or not _same_amount(amount, live[name]):
            yield f"{path}.{name}"


def _same_amount(amount: Any, other: Any) -> bool:
    return bool(amount == other or (quantity(amount) is not None and quantity(amount) == quantity(other)))


def _left_out(name: str, wanted: Any) -> bool:
    """Return whether the API server keeps such a value as an absent field."""
    if isinstance(wanted, bool | int | float):
        return not wanted and name not in _NEVER_LEFT_OUT
    if isinstance(wanted, dict):
        return not wanted and name in _MAPS
    return not wanted
