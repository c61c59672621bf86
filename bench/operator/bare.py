"""The floor: a client that knows what to write and looks at nothing: each pipeline, its children, one status."""

from __future__ import annotations

import json

from bench.operator.client import PIPELINES, Client, Object
from bench.operator.subject import IMAGE

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.kube.resources import resource_of
from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.plan.plan import Environment, plan

SITE = ClusterSettings(IMAGE, {"default": IMAGE})
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Bare(Client):
    """A user who does the operator's work, too."""

    async def create(self, namespace: str, body: Object) -> None:
        """The pipeline and everything of it, one after the other."""
        made = await self.send("POST", PIPELINES.format(namespace), body)
        for manifest in children(made):
            resource = resource_of(manifest["kind"])
            path = resource.path(namespace, manifest["metadata"]["name"])
            await self.send("PATCH", f"{path}?fieldManager=bare&force=true", manifest, APPLY)
        path = f"{PIPELINES.format(namespace)}/{made['metadata']['name']}/status"
        await self.send("PATCH", path, {"status": {"model": "bare"}}, MERGE)


def children(made: Object) -> list[Object]:
    """What the operator makes of a pipeline."""
    pipeline = DynamoPipeline.model_validate_json(json.dumps({k: v for k, v in made.items() if k != "status"}))
    environment = Environment(
        ("http://etcd:2379",), "nats://nats:4222", kubernetes_namespace=made["metadata"]["namespace"]
    )
    return manifests(pipeline, with_images(plan(pipeline, environment), pipeline, SITE), SITE)
