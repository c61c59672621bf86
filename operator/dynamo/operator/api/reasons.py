"""What each reason of a condition means, what a user does about it, and whether it clears by itself.

The reference of the status is written from this table; `conditions.py` has the reasons themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dynamo.operator.api.conditions import Reason

NOTHING = "Nothing."
SERVES = "–"
"""In the place of a remedy, and of what ends it: nothing is wrong."""


class Meaning(NamedTuple):
    """A row of the reference."""

    ready: str
    """Status of `Ready` with it."""
    text: str
    remedy: str = NOTHING
    clears: str = SERVES
    """Whether it clears without a change by the user, and when."""


_RETRIED = "yes: retried at least every five minutes"
_AFTER = "after your change"

_FINE: Mapping[Reason, Meaning] = {
    Reason.SERVING: Meaning("True", "All parts are ready and the endpoint serves requests."),
    Reason.AVAILABLE: Meaning("True", "Requests are served. Reason of the condition `Available`."),
    Reason.ALL_READY: Meaning("True", "All replicas are ready. Reason of `FrontendReady` and `WorkersReady`."),
    Reason.LOADED: Meaning("True", "Every component has a worker with the model loaded. Reason of `ModelLoaded`."),
    Reason.SCALED_TO_ZERO: Meaning(
        "True", "The spec asks for no replicas, so no request is served. `ModelLoaded` is False.",
        "Scale up: `kubectl scale dp/NAME --replicas=1`.", _AFTER,
    ),
}  # fmt: skip
_PROGRESS: Mapping[Reason, Meaning] = {
    Reason.PENDING: Meaning("False", "The operator has seen this generation and starts to apply it.", NOTHING, "yes"),
    Reason.STARTING: Meaning(
        "False", "Pods are created and start. The message names a pod that isn't ready yet.",
        "Wait. If it lasts, read the log of that pod: `kubectl logs POD`.", "yes, once the pod is ready",
    ),
    Reason.LOADING_MODEL: Meaning(
        "False", "A pod loads its model before its worker starts (init container `model`).",
        "Wait. To see the progress: `kubectl logs POD -c model -f`.", "yes, once the model is there",
    ),
    Reason.ROLLING_OUT: Meaning(
        "False", "Pods of this revision replace those of others. The old ones serve meanwhile.", NOTHING,
        "yes, once the old pods are gone",
    ),
    Reason.SCALING: Meaning(
        "False", "More replicas run than the spec asks for. They end.", NOTHING, "yes, once they have ended"
    ),
}  # fmt: skip
_PODS: Mapping[Reason, Meaning] = {
    Reason.NO_FRONTEND: Meaning(
        "False", "No frontend is ready, so no request is served.",
        "Look at the frontend's pods: `kubectl describe pod POD`.", "yes, once a frontend is ready",
    ),
    Reason.NO_WORKERS: Meaning(
        "False", "A component has no reachable workers.",
        "Look at the component's pods, and whether they reach etcd and NATS.", "yes, once a worker registers",
    ),
    Reason.UNSCHEDULABLE: Meaning(
        "False", "No node can run a pod of this pipeline. The message quotes the scheduler.",
        "Add a node, free GPUs, or change `resources`, `accelerator` or tolerations.", "yes, once a node fits",
    ),
    Reason.IMAGE_PULL_BACK_OFF: Meaning(
        "False", "A pod's image can't be pulled.",
        "Correct the image's name, or add the registry's pull secret (`global.imagePullSecrets`).",
        "yes, once the image can be pulled",
    ),
    Reason.CRASH_LOOP_BACK_OFF: Meaning(
        "False", "A container exits again and again. The message has its exit code and last log line.",
        "Correct what that line names. `kubectl logs POD --previous` shows the rest.",
        "only if the cause was temporary",
    ),
    Reason.OOM_KILLED: Meaning(
        "False", "A container was killed for using more memory than its limit.",
        "Raise `resources.limits.memory` of the component, or lower its context or batch size.", _AFTER,
    ),
    Reason.CREATE_CONTAINER_CONFIG_ERROR: Meaning(
        "False", "A pod names a Secret or ConfigMap that doesn't exist, or its container can't be created.",
        "Create the object that the message names, or correct its name in the spec.", "yes, once the object exists",
    ),
    Reason.EVICTED: Meaning(
        "False", "A node evicted a pod, for example for want of memory or disk.",
        "Request what the pod needs in `resources.requests`.", "yes: another pod takes its place",
    ),
    Reason.NODE_LOST: Meaning(
        "False", "A pod is stuck on a node that isn't responding. Another pod takes its place.",
        "If the node is gone for good, delete its Node object: `kubectl delete node NODE`.",
        "yes, once the node is back or deleted",
    ),
    Reason.UNREACHABLE: Meaning(
        "False", "A worker's pod is ready, but the frontends can't reach it.",
        "Check its node, and network policies between the pod and NATS.", "yes, once it is reachable",
    ),
}  # fmt: skip
_SPEC: Mapping[Reason, Meaning] = {
    Reason.INVALID_SPEC: Meaning(
        "False", "The spec can't be deployed. The message names the field to change.", "Change that field.", _AFTER
    ),
    Reason.MISSING_IMAGE: Meaning(
        "False", "The platform has no image for an engine of this pipeline. The message names the chart value.",
        "Set `pipelines.images.workers.ENGINE` in the chart, or `image` in the component.", _AFTER,
    ),
    Reason.ADMISSION_REJECTED: Meaning(
        "False", "The API server rejects an object that follows from the spec. The message quotes it.",
        "Change the field that the message names, or the policy that rejects it.", _AFTER,
    ),
    Reason.NAME_CONFLICT: Meaning(
        "False", "An object that isn't the pipeline's has a name that a part needs. The operator leaves it alone.",
        "Rename the pipeline, or delete that object.", _AFTER,
    ),
    Reason.CREDENTIALS_UNAVAILABLE: Meaning(
        "False", "The operator can't create the pipeline's users of etcd and NATS. Running parts keep serving.",
        "Do what the message says, for example create the Secret that it names.", "yes: the operator retries",
    ),
    Reason.QUOTA_EXCEEDED: Meaning(
        "False", "A quota of the namespace is used up.", "Raise the ResourceQuota, or ask for less.", _RETRIED
    ),
    Reason.FORBIDDEN: Meaning(
        "False", "The operator lacks a permission. The message names it.",
        "Grant it: upgrade the dynamo-platform chart, or correct its roles.", _RETRIED,
    ),
    Reason.API_SERVER_FAILING: Meaning(
        "False", "The API server keeps failing at something that the pipeline needs. The message quotes it.",
        "Check the API server and its admission webhooks.", _RETRIED,
    ),
}  # fmt: skip

GROUPS: Mapping[str, Mapping[Reason, Meaning]] = {
    "It serves": _FINE,
    "On its way": _PROGRESS,
    "Pods": _PODS,
    "Spec and cluster": _SPEC,
}
REASONS: Mapping[Reason, Meaning] = {reason: meaning for group in GROUPS.values() for reason, meaning in group.items()}
