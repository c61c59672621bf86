"""What to write of a namespace's own NATS: `needed(wanted, live, owners)`. Pure.

Its objects belong to all pipelines of the namespace at once. Each is an owner and none is the controller, so that
Kubernetes removes them after the last one, also while no operator runs. An owner is only ever added: Kubernetes
takes out those that are gone, and a server that one pipeline too many holds harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND, DynamoPipeline
from dynamo.operator.cluster.changes import differences
from dynamo.operator.cluster.observe import Live, label
from dynamo.operator.cluster.writes import Apply, Conflict
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest
from dynamo.operator.manifests.nats import GROUP

REMEDY: Final = "delete it, because the NATS of this namespace needs the name"

_REFERENCE: Final = ("apiVersion", "kind", "name", "uid")

Owner = Mapping[str, Any]


def needed(wanted: Sequence[Manifest], live: Iterable[Live], owners: Sequence[Owner]) -> Iterator[Apply | Conflict]:
    """Yield the writes after which `live` has what is wanted and belongs to `owners`, too; former owners stay."""
    there = {(item["kind"], item["metadata"]["name"]): item for item in live}
    for manifest in wanted:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        existing = there.get((kind, name))
        if existing is None:
            yield Apply(_owned(manifest, owners))
        elif not is_ours(existing):
            yield Conflict(kind, name, REMEDY)
        elif not existing["metadata"].get("deletionTimestamp"):
            whole = _owned(manifest, [*owners_of(existing), *owners])
            if paths := differences(whole, existing):
                metadata = existing["metadata"]
                yield Apply(whole, metadata.get("uid"), tuple(paths), metadata.get("resourceVersion", ""))


def is_ours(live: Live) -> bool:
    """Return whether an object is ours by its labels, or by its owners where the labels were removed."""
    owners = live["metadata"].get("ownerReferences", [])
    if any(reference.get("controller") for reference in owners):
        return False
    labelled = label(live, "app.kubernetes.io/managed-by") == naming.MANAGER and label(live, naming.PIPELINE) == GROUP
    return labelled or bool(owners_of(live))


def owners_of(live: Live) -> list[Owner]:
    """Return the pipelines that it belongs to."""
    references = live["metadata"].get("ownerReferences", [])
    return [{key: reference[key] for key in _REFERENCE} for reference in references if _is_pipeline(reference)]


def owner(pipeline: DynamoPipeline, uid: str) -> Owner:
    """Return a pipeline as one of several owners: none of them is the controller."""
    return {"apiVersion": API_VERSION, "kind": KIND, "name": pipeline.name, "uid": uid}


def owners_in(heads: Iterable[Mapping[str, Any]]) -> list[Owner]:
    """Return the owners out of a LIST of pipelines: those that nobody has deleted."""
    alive = (metadata["metadata"] for metadata in heads if not metadata["metadata"].get("deletionTimestamp"))
    return [
        {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}
        for metadata in alive
    ]


def _is_pipeline(reference: Mapping[str, Any]) -> bool:
    group = str(reference.get("apiVersion", "")).partition("/")[0]
    return (group, reference.get("kind")) == (API_VERSION.partition("/")[0], KIND)


def _owned(manifest: Manifest, owners: Sequence[Owner]) -> Manifest:
    by_uid = {reference["uid"]: dict(reference) for reference in owners}
    references = [by_uid[uid] for uid in sorted(by_uid)]
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": references}}
