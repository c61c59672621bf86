"""Carries out the changes of a reconcile: in order, each meant for the very object that was read.

What exists is written over by uid and resourceVersion, what doesn't is created or refused: so of two operators
that read the same, only the first one's write is carried out. `kube/write_fence.py` says what that is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynamo.operator.api.conditions import Reason, Trouble
from dynamo.operator.cluster.changes import batches, is_creation
from dynamo.operator.cluster.observe import label
from dynamo.operator.cluster.reader import ClusterReader, gathered
from dynamo.operator.cluster.writes import Apply, Change, Conflict, Delete, Resize
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError, Gone, Refused, about, failing, verdict
from dynamo.operator.kube.refused_fields import suspects
from dynamo.operator.kube.resources import PODS, ROUTES, resource_of
from dynamo.operator.manifests import naming
from dynamo.operator.workqueue import Attempt

AT_ONCE: Final = 32
"""Writes of one reconcile at the same time."""


class StaleError(Exception):
    """Raised when the pipeline, or one of its objects, was changed or deleted meanwhile."""


class NameTakenError(StaleError):
    """Raised when an object that was to be created exists already."""


class ChangeWriter:
    """Writes changes; counts them, and how long to wait for what was refused."""

    def __init__(self, api: Api, reader: ClusterReader, namespace: str, attempt: Attempt) -> None:
        self._api, self._reader, self._namespace, self._attempt = api, reader, namespace, attempt
        self.deployment: Object | None = None
        """The frontends' as the server has it since our write."""
        self.count = 0
        self.wait: float | None = None
        self._full: dict[str, Trouble] = {}
        """Kinds of which a quota has refused an object in this reconcile: it would refuse the others, too."""

    async def write_all(self, todo: Sequence[Change]) -> Trouble | None:
        """Write changes in order; a refused change doesn't keep the others from being written."""
        worst: Trouble | None = None
        parts = (batch[at : at + AT_ONCE] for batch in batches(todo) for at in range(0, len(batch), AT_ONCE))
        for batch in parts:
            for trouble in await gathered(self.write(change) for change in batch):
                if trouble is not None and (worst is None or (trouble.final and not worst.final)):
                    worst = trouble
        return worst

    async def write(self, change: Change) -> Trouble | None:
        """Write a change; raises `StaleError`, or `ApiError` for what should pass."""
        if isinstance(change, Conflict):
            text = f"{change.kind} {change.name} already exists and is not owned by this pipeline: {change.remedy}"
            return Trouble(Reason.NAME_CONFLICT, text, final=True)
        if isinstance(change, Apply) and change.manifest["kind"] == ROUTES.kind and self._reader.no_routes:
            text = f"the cluster has no {ROUTES.kind}s ({self._reader.no_routes}): install the Gateway API, "
            return Trouble(
                Reason.ADMISSION_REJECTED, f"spec.frontend.httpRoute: {text}or use spec.frontend.ingress", final=True
            )
        if is_creation(change) and isinstance(change, Apply) and change.manifest["kind"] in self._full:
            return self._full[change.manifest["kind"]]
        try:
            await self._send(change)
        except ApiError as error:
            return self._judge(error, change)
        self.count += 1
        return None

    async def _send(self, change: Apply | Resize | Delete) -> None:
        if isinstance(change, Apply):
            resource = resource_of(change.manifest["kind"])
            made = await self._api.apply(resource, change.manifest, change.uid, change.version)
            self._reader.wrote(resource, made)
            if resource.kind == "Deployment" and label(change.manifest, naming.COMPONENT) == naming.FRONTEND:
                self.deployment = made
            return
        target = change.target
        resource = resource_of(target.kind) if target.kind != PODS.kind else PODS
        which = target.uid, target.version
        if isinstance(change, Resize):
            resized = await self._api.resize(
                resource, namespace=self._namespace, name=target.name, which=which, replicas=change.replicas
            )
            self._reader.wrote(resource, resized)
        else:
            await self._api.delete(resource, self._namespace, target.name, which)
            self._reader.removed(resource, self._namespace, target.name)

    def _judge(self, error: ApiError, change: Change) -> Trouble:
        if isinstance(verdict(error), Gone) or _differs(error):
            raise (NameTakenError if is_creation(change) else StaleError) from error
        if isinstance(change, Apply):
            error = about(error, change.manifest["kind"], change.manifest["metadata"]["name"])
        judgement = verdict(error)
        refusal = judgement if isinstance(judgement, Refused) else failing(error, self._attempt.failures)
        if refusal is None:
            raise error
        self.wait = max(self.wait or 0.0, refusal.seconds or 0.0) or None
        if isinstance(change, Apply) and refusal.trouble.reason is Reason.QUOTA_EXCEEDED:
            self._full.setdefault(change.manifest["kind"], refusal.trouble)
        if isinstance(change, Apply) and refusal.trouble.reason is Reason.ADMISSION_REJECTED:
            return refusal.trouble._replace(message=suspects(refusal.trouble.message, change.manifest))
        return refusal.trouble


def _differs(error: ApiError) -> bool:
    """Return whether the object is another or has changed: 409, or 422 where the uid is compared as immutable."""
    return error.code == 409 or (error.code == 422 and "metadata.uid" in error.message)
