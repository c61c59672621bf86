"""`manifests(pipeline, plan, cluster, replicas)`: everything that should exist now, in the order to write it.

Called by the reconciler with the number of workers that `converge` allows at this moment.
Old revisions aren't here: what they were made from is gone, so they are only scaled down
and removed. Each manifest bears a digest of itself, by which a field that was dropped from
the intent is noticed too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dynamo.operator.api.bounds import RENDERED_BYTES
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.config_map import files_config_map
from dynamo.operator.manifests.context import ClusterSettings, Manifest, RenderContext, RenderError
from dynamo.operator.manifests.credentials import given
from dynamo.operator.manifests.frontend import frontend_deployment, frontend_service
from dynamo.operator.manifests.ingress import entrance
from dynamo.operator.manifests.shared import disruption_budget, model_cache, network_policies, service_account
from dynamo.operator.manifests.workers import headless_services, worker_sets
from dynamo.operator.plan.plan import REVISION_DIGITS
from dynamo.operator.plan.workload import Plan, Workload


def manifests(
    pipeline: DynamoPipeline,
    plan: Plan,
    cluster: ClusterSettings,
    replicas: Mapping[str, int] | None = None,
    lost: Mapping[str, int] | None = None,
) -> list[Manifest]:
    """Return the manifests of a plan (out of `with_images`) on this cluster; raises `RenderError`.

    `replicas` says how many workers of the wanted revision there are now, by component; the
    plan's number counts for those it leaves out. `lost` says how many more than that hang on dead nodes.
    """
    context, counts, gone = RenderContext.of(pipeline, plan, cluster), replicas or {}, lost or {}
    objects = [service_account(context), *model_cache(context), *network_policies(context)]
    objects += [frontend_service(context), *entrance(context)]
    for workload in plan.workloads:
        objects += disruption_budget(context, workload, gone.get(workload.component, 0))
    for workload in plan.workers:
        objects += _worker(context, workload, counts.get(workload.component, workload.replicas))
    return _signed_within((*objects, frontend_deployment(context)))


def with_images(plan: Plan, pipeline: DynamoPipeline, cluster: ClusterSettings) -> Plan:
    """Return the plan with revisions that also name image and sign-in: both are rollouts like any other."""
    engines = {c.name: c.engine for c in pipeline.spec.components}
    sign_in = sorted(given(pipeline, cluster))

    def image(workload: Workload) -> str:
        return cluster.frontend_image if workload.is_frontend else cluster.worker_image(engines[workload.component])

    def revision(workload: Workload) -> str:
        return digest([workload.revision, image(workload), *sign_in])[:REVISION_DIGITS]

    return replace(plan, workloads=tuple(replace(w, revision=revision(w)) for w in plan.workloads))


def digest(value: Any) -> str:
    """Return a digest of any JSON, the same for the same meaning."""
    return _hashed(_text(value))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _worker(context: RenderContext, workload: Workload, replicas: int) -> list[Manifest]:
    return [
        *files_config_map(context, workload),
        *headless_services(context, workload, replicas),
        *worker_sets(context, workload, replicas),
    ]


def _signed_within(objects: Iterable[Manifest], most: int = RENDERED_BYTES) -> list[Manifest]:
    """Return all of them with their digests, if they are few enough to be kept, compared and sent."""
    signed, size = [], 0
    for manifest in objects:
        signed_manifest, length = _signed(manifest)
        size += length
        if size > most:
            raise RenderError(
                "spec.components",
                f"all objects of the pipeline have more than {most >> 20} MiB together: ask for fewer groups, "
                "or for a smaller podTemplate",
            )
        signed.append(signed_manifest)
    return signed


def _signed(manifest: Manifest) -> tuple[Manifest, int]:
    """Add a digest without replicas: they are never dropped, and an autoscaler may change them."""
    metadata, spec = manifest["metadata"], manifest.get("spec", {})
    signed = {**manifest, "spec": {k: v for k, v in spec.items() if k != "replicas"}}
    text = _text(signed)
    annotations = {**metadata.get("annotations", {}), naming.INTENT: _hashed(text)[:16]}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}, len(text)
