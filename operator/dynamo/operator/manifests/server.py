"""The container of a component's own server (vLLM, SGLang, llama-server …), beside the worker that asks it. Pure.

It is a sidecar in Kubernetes' sense (an init container that is restarted for ever): it starts before the worker and
ends after it, so that streams end in order. Devices and the component's resources are its own. Images of others write
where they like and mostly run as root: the root file system is writable here, and the user is another than root.
"""

from __future__ import annotations

from typing import Final

from dynamo.operator.api.v1alpha1 import Component
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.manifests.pod import CACHE, LOCKED, literal
from dynamo.operator.plan.servers import PLACE, port_of
from dynamo.operator.plan.workload import Workload

CONTAINER: Final = "server"
_START_SECONDS: Final = 3600
_PERIOD: Final = 5
_USER: Final = 1000


def server_container(
    context: RenderContext, workload: Workload, *, resources: Manifest, env: list[Manifest], mounts: list[Manifest]
) -> Manifest:
    """Return the sidecar; `env` and `mounts` are the worker's that concern a model."""
    component, port = context.component(workload), port_of(context.component(workload))
    named = {variable["name"] for variable in env}
    own = [{"name": name, "value": value} for name, value in (("USER", "dynamo"),) if name not in named]
    probe = {"tcpSocket": {"port": "server"}, "periodSeconds": _PERIOD, "timeoutSeconds": _PERIOD}
    start = component.startup_timeout_seconds or _START_SECONDS
    container: Manifest = {
        "name": CONTAINER,
        "image": component.image,
        "imagePullPolicy": context.cluster.pull_policy,
        "restartPolicy": "Always",
        **_words(component, port),
        "env": [*env, *own],
        "ports": [{"name": "server", "containerPort": port, "protocol": "TCP"}],
        "resources": resources,
        "volumeMounts": [{"name": "server-tmp", "mountPath": "/tmp"}, *mounts],  # the container's own
        "securityContext": {**LOCKED, "readOnlyRootFilesystem": False, "runAsUser": _USER},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # It may load for long before it listens; whether it answers well, the worker looks at.
        "startupProbe": {**probe, "failureThreshold": -(-start // _PERIOD)},
        "livenessProbe": {**probe, "failureThreshold": 6},
    }
    return container | ({"envFrom": list(component.env_from)} if component.env_from else {})


def _words(component: Component, port: int) -> Manifest:
    given = {"command": component.command, "args": component.args}
    return {name: [literal(w.replace(PLACE, str(port))) for w in words] for name, words in given.items() if words}


def server_volumes(component: Component) -> list[Manifest]:
    """Return the volumes that only it has."""
    return [{"name": "server-tmp", "emptyDir": {}}]


def server_mounts(mounts: list[Manifest]) -> list[Manifest]:
    """Return those of the worker's mounts that a server has, too: models and shared memory."""
    return [mount for mount in mounts if mount["mountPath"] in (CACHE, "/dev/shm") or mount["name"] == "model-source"]
