"""Pods of Kubernetes objects, read into components. Pure."""

from __future__ import annotations

from typing import Any, Final

from dynamo.cli.conversion.draft import Draft, items, mapping
from dynamo.cli.conversion.server_arguments import Server, read_flags, server_of

GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "habana.ai/gaudi")
TOKENS: Final = frozenset(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"))
_SECRET_WORDS: Final = ("TOKEN", "PASSWORD", "SECRET", "API_KEY")
_SAME: Final = (
    "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "runtimeClassName", "priorityClassName",
    "schedulerName",
)  # fmt: skip
"""Fields of a pod that a component has under the same name."""
_KNOWN: Final = {"containers", "volumes", "mainContainer", "serviceAccountName", "restartPolicy", *_SAME}
_OF_CONTAINER: Final = {
    "name", "image", "command", "args", "env", "envFrom", "resources", "workingDir", "ports", "imagePullPolicy",
    "startupProbe", "livenessProbe", "readinessProbe", "volumeMounts",
}  # fmt: skip
_UPPER_ENV: Final = "DYN_"


def main_container(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the container of the server: the one called `main` or `server`, else the first."""
    containers = [mapping(container) for container in items(pod.get("containers"))]
    named = (container for container in containers if container.get("name") in ("main", "server"))
    return next(named, containers[0] if containers else {})


def server_in(container: dict[str, Any]) -> Server:
    """Return what a container runs."""
    return server_of(items(container.get("command")), items(container.get("args")), str(container.get("image") or ""))


def read_container(
    container: dict[str, Any], pod: dict[str, Any], draft: Draft, path: str, *, server: Server | None = None
) -> dict[str, Any]:
    """Return the fields of a component from its container and the pod around it."""
    server = server_in(container) if server is None else server
    fields: dict[str, Any] = {"engine": server.kind}
    read_flags(server, fields, draft, f"{path}.args")
    read_environment(container.get("env"), fields, draft, f"{path}.env")
    if sources := items(container.get("envFrom")):
        fields["envFrom"] = sources
    read_resources(mapping(container.get("resources")), fields, draft, f"{path}.resources")
    for name in _SAME:
        if value := pod.get(name):
            fields[name] = value
    read_volumes(pod, fields, draft, path)
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if container.get(name):
            draft.remark(f"{path}.{name}", "the operator has probes of its own; startupTimeoutSeconds is a field")
    draft.left_out(container, _OF_CONTAINER, path)
    draft.left_out(pod, _KNOWN, path)
    return fields


def read_environment(given: Any, fields: dict[str, Any], draft: Draft, path: str) -> None:
    """Carry variables over; the hub's token becomes the model's Secret, and no secret value is copied."""
    kept: list[dict[str, Any]] = []
    for entry in map(mapping, items(given)):
        name, reference = str(entry.get("name") or ""), mapping(entry.get("valueFrom"))
        secret = mapping(reference.get("secretKeyRef"))
        if name in TOKENS and secret.get("name"):
            key = str(secret.get("key") or "HF_TOKEN")
            draft.spec["model"]["tokenSecret"] = {"name": str(secret["name"]), "key": key}
        elif "value" in entry and any(word in name.upper() for word in _SECRET_WORDS):
            draft.remark(f"{path}.{name}", "looks like a secret in plain text: put it into a Secret")
        elif name == "DYN_ROUTER_MODE":
            draft.spec["frontend"].setdefault("router", {})["mode"] = str(entry.get("value"))
        elif name and not name.startswith(_UPPER_ENV):
            kept.append(
                {"name": name} | ({"valueFrom": reference} if reference else {"value": str(entry.get("value", ""))})
            )
        elif name:
            draft.remark(f"{path}.{name}", "is NVIDIA Dynamo's own variable: a field of the pipeline may say the same")
    if kept:
        fields["env"] = kept


def read_resources(given: dict[str, Any], fields: dict[str, Any], draft: Draft, path: str) -> None:
    """Split a container's resources into the component's and its devices."""
    amounts: dict[str, dict[str, str]] = {}
    for side in ("requests", "limits"):
        for name, amount in mapping(given.get(side)).items():
            if name in ("gpu", *GPUS) or name.startswith("nvidia.com/mig-"):
                kind = str(given.get("gpuType") or GPUS[0]) if name == "gpu" else name
                fields["accelerator"] = {"resource": kind, "count": _count(amount)}
            elif name in ("cpu", "memory", "ephemeral-storage"):
                amounts.setdefault(side, {})[name] = str(amount)
            elif name != "gpuType":
                draft.remark(f"{path}.{side}.{name}", "has no counterpart: left out")
    if given.get("claims"):
        draft.remark(f"{path}.claims", "name the claim again under the component's resourceClaims")
    if amounts:
        fields["resources"] = amounts


def read_volumes(pod: dict[str, Any], fields: dict[str, Any], draft: Draft, path: str) -> None:
    """Find shared memory among the volumes, and remark on the others."""
    for volume in map(mapping, items(pod.get("volumes"))):
        empty = mapping(volume.get("emptyDir"))
        claim = mapping(volume.get("persistentVolumeClaim")).get("claimName")
        if empty.get("medium") == "Memory":
            if empty.get("sizeLimit"):
                fields["sharedMemory"] = str(empty["sizeLimit"])
        elif claim:
            draft.remark(f"{path}.volumes.{volume.get('name')}", f"for downloads: model.cache.claimName: {claim}; for "
                         f"a model in it: model.source: pvc://{claim}/PATH")  # fmt: skip
        else:
            draft.remark(f"{path}.volumes.{volume.get('name')}", "has no counterpart: left out")


def _count(amount: Any) -> int:
    text = str(amount)
    return int(text) if text.isdigit() and len(text) < 4 else 1
