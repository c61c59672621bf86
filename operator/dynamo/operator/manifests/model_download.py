"""An init container that loads the model, so that no probe's patience limits a download.

With a claim (`spec.model.cache`) all workers share its folder, where the hub's library locks each file while one
of them loads it: the others wait, and find it. Without one, every pod loads into a volume of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from dynamo.operator.resources.pod import CACHE, LOCKED, literal
from dynamo.operator.resources.site import Manifest, Scene
from dynamo.operator.workload import Workload

CONTAINER = "model"
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def loaders(scene: Scene, workload: Workload) -> list[Manifest]:
    """One if there is something to load. It gets the token and the user's variables, no way to etcd and NATS."""
    if not workload.fetch:
        return []
    component = scene.component(workload)
    found: Manifest = {
        "name": CONTAINER,
        "image": scene.site.worker_image(component.engine),
        "imagePullPolicy": scene.site.pull_policy,
        "command": list(workload.fetch[:3]),
        "args": [literal(argument) for argument in workload.fetch[3:]],
        "env": list(variables(scene, workload)),
        "resources": {"requests": dict(_REQUESTS)},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # the container's own
            {"name": "cache", "mountPath": CACHE},
        ],
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return [found | ({"envFrom": list(component.env_from)} if component.env_from else {})]


def variables(scene: Scene, workload: Workload) -> Iterator[Manifest]:
    """Where the model goes and who asks for it; then the user's own, which win and may name those before."""
    component = scene.component(workload)
    theirs = {variable.name for variable in component.env}
    for name, value in (("HF_HOME", f"{CACHE}/huggingface"), ("HOME", "/tmp")):  # the container's own
        if name not in theirs:
            yield {"name": name, "value": value}
    for secret in workload.secrets:
        if secret.variable not in theirs:
            reference = {"name": secret.secret, "key": secret.key}
            yield {"name": secret.variable, "valueFrom": {"secretKeyRef": reference}}
    for variable in component.env:
        given = {"value": variable.value or ""} if variable.value_from is None else {"valueFrom": variable.value_from}
        yield {"name": variable.name, **given}
