"""Names, labels and owners of everything that belongs to a pipeline.

No child bears `app.kubernetes.io/instance`: Argo CD with label tracking would take a child
for one of its own and prune it. Names fit because the CRD limits pipeline and component
to 38 characters together: a StatefulSet's may have 52.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.operator.api.v1alpha1 import API_VERSION, KIND
from dynamo.operator.manifests.context import Manifest, RenderContext
from dynamo.operator.plan.workload import Workload

MANAGER = "dynamo-operator"
PIPELINE = "dynamo.dev/pipeline"
COMPONENT = "dynamo.dev/component"
REVISION = "dynamo.dev/revision"
GROUP = "dynamo.dev/group"
INTENT = "dynamo.dev/intent"
POD_INDEX = "apps.kubernetes.io/pod-index"
FRONTEND = "frontend"

Labels = dict[str, str]


def part_name(pipeline: str, component: str) -> str:
    """Return the name of what all revisions of a component share."""
    return f"{pipeline}-{component}"


def revision_name(pipeline: str, workload: Workload) -> str:
    """Return the name of what belongs to one revision."""
    return f"{pipeline}-{workload.component}-{workload.revision}"


def group_name(pipeline: str, workload: Workload, group: int) -> str:
    """Return the name of the pods that are one worker together; with one node there is one StatefulSet for all."""
    name = revision_name(pipeline, workload)
    return f"{name}-{group}" if workload.nodes > 1 else name


def account_name(pipeline: str) -> str:
    """Return the name of the ServiceAccount."""
    return f"{pipeline}-pipeline"


def cache_name(pipeline: str) -> str:
    """Return the name of the claim with the downloaded models."""
    return f"{pipeline}-model-cache"


def credentials_name(pipeline: str) -> str:
    """Return the name of the Secret with what the platform's etcd and NATS ask for."""
    return f"{pipeline}-credentials"


def pipeline_labels(pipeline: str) -> Labels:
    """Return the labels of every child, by which the operator lists."""
    return {
        "app.kubernetes.io/name": "dynamo-pipeline",
        "app.kubernetes.io/part-of": "dynamo",
        "app.kubernetes.io/managed-by": MANAGER,
        PIPELINE: pipeline,
    }


def part_labels(pipeline: str, component: str) -> Labels:
    """Return the labels of every child of one component."""
    kind = FRONTEND if component == FRONTEND else "worker"
    return {**pipeline_labels(pipeline), "app.kubernetes.io/component": kind, COMPONENT: component}


def revision_labels(pipeline: str, workload: Workload) -> Labels:
    """Return the labels of every child of one revision."""
    return {**part_labels(pipeline, workload.component), REVISION: workload.revision}


def part_selector(pipeline: str, component: str) -> Labels:
    """Return the selector of a component's pods, all revisions."""
    return {PIPELINE: pipeline, COMPONENT: component}


def revision_selector(pipeline: str, workload: Workload, group: int | None = None) -> Labels:
    """Return the selector of a revision's pods, or of one group of it."""
    labels = {**part_selector(pipeline, workload.component), REVISION: workload.revision}
    return labels if group is None else {**labels, GROUP: str(group)}


def child(
    context: RenderContext,
    api_version: str,
    kind: str,
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the head of a manifest: garbage collection needs no finalizer, since the pipeline owns it."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": context.pipeline.name,
        "uid": context.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata: Manifest = {"name": name, "namespace": context.kubernetes_namespace, "labels": dict(labels)}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": {**metadata, "ownerReferences": [owner]}}
