"""`manifests(pipeline, plan, site, replicas)`: everything that should exist now, in the order to write it.

Called by the reconciler with the number of workers that `converge` allows at this moment.
Old revisions aren't here: what they were made from is gone, so they are only scaled down
and removed. Each manifest bears a digest of itself, by which a field that was dropped from
the intent is noticed too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.plan import REVISION_DIGITS
from dynamo.operator.resources import naming
from dynamo.operator.resources.credentials import given
from dynamo.operator.resources.entrance import entrance
from dynamo.operator.resources.files import files_config_map
from dynamo.operator.resources.frontend import frontend_deployment, frontend_service
from dynamo.operator.resources.shared import disruption_budget, model_cache, network_policies, service_account
from dynamo.operator.resources.site import Manifest, Scene, Site
from dynamo.operator.resources.workers import headless_services, worker_sets
from dynamo.operator.workload import Plan, Workload


def manifests(
    pipeline: DynamoPipeline,
    plan: Plan,
    site: Site,
    replicas: Mapping[str, int] | None = None,
    lost: Mapping[str, int] | None = None,
) -> list[Manifest]:
    """What a plan (out of `with_images`) is on this site; raises `RenderError`.

    `replicas` says how many workers of the wanted revision there are now, by component; the
    plan's number counts for those it leaves out. `lost` says how many more than that hang on dead nodes.
    """
    scene, counts, gone = Scene.of(pipeline, plan, site), replicas or {}, lost or {}
    found = [service_account(scene), *model_cache(scene), *network_policies(scene)]
    found += [frontend_service(scene), *entrance(scene)]
    for workload in plan.workloads:
        found += disruption_budget(scene, workload, gone.get(workload.component, 0))
    for workload in plan.workers:
        found += _worker(scene, workload, counts.get(workload.component, workload.replicas))
    return [_signed(manifest) for manifest in (*found, frontend_deployment(scene))]


def with_images(plan: Plan, pipeline: DynamoPipeline, site: Site) -> Plan:
    """The plan with revisions that also name the image, and who asks for sign-in: both are rollouts like any other."""
    engines = {c.name: c.engine for c in pipeline.spec.components}
    sign_in = sorted(given(pipeline, site))

    def image(workload: Workload) -> str:
        return site.frontend_image if workload.is_frontend else site.worker_image(engines[workload.component])

    def revision(workload: Workload) -> str:
        return digest([workload.revision, image(workload), *sign_in])[:REVISION_DIGITS]

    return replace(plan, workloads=tuple(replace(w, revision=revision(w)) for w in plan.workloads))


def digest(value: Any) -> str:
    """Of any JSON, the same for the same meaning."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _worker(scene: Scene, workload: Workload, replicas: int) -> list[Manifest]:
    return [
        *files_config_map(scene, workload),
        *headless_services(scene, workload, replicas),
        *worker_sets(scene, workload, replicas),
    ]


def _signed(manifest: Manifest) -> Manifest:
    """Replicas stay out of the digest: they are never dropped, and an autoscaler may change them."""
    metadata, spec = manifest["metadata"], manifest.get("spec", {})
    signed = {**manifest, "spec": {k: v for k, v in spec.items() if k != "replicas"}}
    annotations = {**metadata.get("annotations", {}), naming.INTENT: digest(signed)[:16]}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
