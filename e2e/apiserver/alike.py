"""What a namespace holds, without what differs from run to run: `normal(objects)`, equal for equal outcomes. Pure.

Left out are uids, versions, times, addresses that the server draws, what controllers of
Kubernetes report of children, and pods' own names; pods are counted by part and state.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dynamo.operator.cluster.changes import differences
from dynamo.operator.cluster.observe import is_ready, label
from dynamo.operator.kube.resources import PIPELINES, PODS
from dynamo.operator.manifests import naming

Object = Mapping[str, Any]
_DRAWN = (
    "uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime", "namespace",
    "clusterIP", "clusterIPs", "nodePort", "managedFields",
)  # fmt: skip
_PLACE = "THE-NAMESPACE"


def normal(objects: Iterable[Object], namespace: str) -> dict[str, Any]:
    """By kind and name; the namespace's own name is another word."""
    live = list(objects)
    found = {f"{one['kind']} {one['metadata']['name']}": _kept(one) for one in live if one["kind"] != PODS.kind}
    pods = Counter(_pod(one) for one in live if one["kind"] == PODS.kind)
    text = json.dumps({**found, "pods": dict(sorted(pods.items()))}, sort_keys=True)
    said: dict[str, Any] = json.loads(text.replace(namespace, _PLACE))
    return said


def unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The paths at which two normal forms differ, in either direction."""
    return sorted({*differences(one, other), *differences(other, one)})


def _kept(found: Object) -> Any:
    if found["kind"] == PIPELINES.kind:
        # Its generation counts the user's edits, which are the same in each run.
        return _plain(found)
    without = {k: v for k, v in found.items() if k != "status"}
    metadata = {k: v for k, v in found["metadata"].items() if k != "generation"}
    # It is a digest of text that holds the namespace; that it is right shows in that nothing is written at rest.
    annotations = {k: v for k, v in metadata.get("annotations", {}).items() if k != naming.INTENT}
    return {**_plain({**without, "metadata": metadata | {"annotations": annotations}}), "managers": _managers(found)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if name not in _DRAWN}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _managers(found: Object) -> list[str]:
    """Who owns fields, and how they came to it; not who reports a status, which comes when it comes."""
    owners = [field for field in found["metadata"].get("managedFields", []) if field.get("subresource") != "status"]
    return sorted({f"{owner['manager']} {owner['operation']}" for owner in owners})


def _pod(found: Object) -> str:
    state = "ready" if is_ready(found) else "ending" if found["metadata"].get("deletionTimestamp") else "waiting"
    return f"{label(found, naming.COMPONENT)} {label(found, naming.REVISION)} {state}"
