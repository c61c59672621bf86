"""An init container that loads the model, so that no probe's patience limits a download.

With a claim (`spec.model.cache`) all workers share its folder, where the hub's library locks each file while one
of them loads it: the others wait, and find it. Without one, every pod loads into a volume of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.pod import CACHE, LOCKED, literal
from dynamo.operator.plan.workload import Workload

CONTAINER = "model"
TOKEN, OFFLINE = "HF_TOKEN", "HF_HUB_OFFLINE"
_REQUESTS = {"cpu": "100m", "memory": "256Mi"}


def loaders(context: RenderContext, workload: Workload) -> list[Manifest]:
    """Return the init container if there is something to load. It has the token and the user's variables alone."""
    if not workload.fetch:
        return []
    component = context.component(workload)
    container: Manifest = {
        "name": CONTAINER,
        "image": context.cluster.worker_image(component.engine),
        "imagePullPolicy": context.cluster.pull_policy,
        "command": list(workload.fetch[:3]),
        "args": [literal(argument) for argument in workload.fetch[3:]],
        "env": list(variables(context, workload)),
        "resources": {"requests": dict(_REQUESTS)},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # the container's own
            {"name": "cache", "mountPath": CACHE},
        ],
        "securityContext": LOCKED,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return [container | ({"envFrom": list(component.env_from)} if component.env_from else {})]


def variables(context: RenderContext, workload: Workload, *, loads: bool = True) -> Iterator[Manifest]:
    """Yield where the model goes and who asks for it; then the user's own, which win and may name those before.

    A container that `loads` nothing, since another has, gets no token: code of users' runs in it. It takes what is
    in the cache, since the hub would not even tell it of a model for which a token is needed.
    """
    component = context.component(workload)
    theirs = {variable.name for variable in component.env}
    withheld = not loads and any(secret.variable == TOKEN for secret in workload.secrets) and TOKEN not in theirs
    if withheld and OFFLINE not in theirs:
        yield {"name": OFFLINE, "value": "1"}
    for name, value in (("HF_HOME", f"{CACHE}/huggingface"), ("HOME", "/tmp")):  # the container's own
        if name not in theirs:
            yield {"name": name, "value": value}
    for secret in workload.secrets:
        if secret.variable not in theirs and (loads or secret.variable != TOKEN):
            reference = {"name": secret.secret, "key": secret.key}
            yield {"name": secret.variable, "valueFrom": {"secretKeyRef": reference}}
    for variable in component.env:
        given = {"value": variable.value or ""} if variable.value_from is None else {"valueFrom": variable.value_from}
        yield {"name": variable.name, **given}
