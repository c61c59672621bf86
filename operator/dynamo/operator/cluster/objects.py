"""A pipeline's objects in the cluster: `ClusterReader` reads them, `ChangeWriter` carries out a reconcile's changes.

Reads come out of the store where that is live, else from the server. The store may lag behind. So it only answers
whether there is anything to do: a creation is refused where anything has the name, and before any other write all is
listed again. And where a pipeline stands still on its way, what it waits for is asked for: a watch may have stalled.

Writes go out in order, each meant for the very object that was read. What exists is written over by uid and
resourceVersion, what doesn't is created or refused: so of two operators that read the same, only the first one's
write is carried out. `kube/leader_election.py` says what that is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from dynamo.operator.api.conditions import Reason, Trouble
from dynamo.operator.cluster.changes import batches, is_creation
from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.observe import label
from dynamo.operator.cluster.writes import Apply, Change, Conflict, Delete, Resize
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError, Gone, Refused, about, failing, verdict
from dynamo.operator.kube.refused_fields import suspects
from dynamo.operator.kube.resources import CHILDREN, PODS, ROUTES, Key, Resource, resource_of
from dynamo.operator.manifests import naming
from dynamo.operator.workqueue import Attempt

T = TypeVar("T")
ExpectVersion = Callable[[Resource, str, int], None]
"""Called with a kind, a namespace, and the version of an object that a LIST had and no watch has delivered."""
AWAITED = (PODS, resource_of("Deployment"))
"""What a pipeline on its way waits for; all else is ours to write."""
SPARING_SECONDS = 1.0
"""Between two pipelines that are asked for because they stand still: one that finds a stalled watch helps all."""
MANY = 64
"""Objects of one kind: to decode a thousand takes some milliseconds, in which others may have their turn."""
ROUTES_SECONDS = 60.0
"""How long a cluster without HTTPRoutes is believed to have none."""


class ClusterReader:
    """Reads the cluster; shared by all reconciles."""

    def __init__(self, api: Api, store: ObjectStore | None = None, expect_version: ExpectVersion | None = None) -> None:
        self._api, self._store = api, store if store is not None else ObjectStore()
        self._expect_version: ExpectVersion = expect_version or _expect_nothing
        self._spared_until: datetime | None = None
        self._ask_at: datetime | None = None
        self.no_routes = ""
        """Why there are no HTTPRoutes: the server's sentence."""

    async def known(self, key: Key, now: datetime) -> list[Object]:
        """Return everything with the pipeline's label, as the store has it."""
        return await self._gathered(key, now, self._store)

    async def some(self, kinds: Iterable[Resource], key: Key) -> list[Object]:
        """Return the pipeline's objects of these kinds alone, as the store has them."""
        seen = {kind: self._store.of(kind, key) for kind in kinds}
        selector = f"{naming.PIPELINE}={key.name}"
        asked = [self._api.items(kind, key.namespace, selector) for kind, known in seen.items() if known is None]
        return [item for many in (*seen.values(), *await gathered(asked)) for item in many or ()]

    async def refresh(self, keys: Sequence[Key], now: datetime) -> None:
        """Ask the server for what watches should have delivered; do nothing if another pipeline has just asked."""
        if self._spared_until is not None and now < self._spared_until:
            return
        self._spared_until = now + timedelta(seconds=SPARING_SECONDS)
        live = [(kind, key) for key in keys for kind in AWAITED if self._store.of(kind, key) is not None]
        await gathered(self._asked(kind, key) for kind, key in live)

    async def _asked(self, kind: Resource, key: Key) -> None:
        names: list[tuple[str, str]] = []
        newest, version = 0, "0"
        async for page in self._api.pages(kind, key.namespace, f"{naming.PIPELINE}={key.name}"):
            for item in page["items"]:
                names.append((key.namespace, item["metadata"]["name"]))
                if self._store.take(kind, item):
                    newest = max(newest, int(item["metadata"]["resourceVersion"]))
            version = page["metadata"]["resourceVersion"]
        self._store.listed(kind, key.namespace, names, version, of=key)
        if newest:
            # Not the LIST's own version, which may be that of another kind: no event of this one ever bears it.
            self._expect_version(kind, key.namespace, newest)

    async def listed(self, key: Key, now: datetime) -> list[Object]:
        """Return everything with the pipeline's label, as of now."""
        return await self._gathered(key, now, None)

    async def namesakes(self, namespace: str, intent: Sequence[Object], live: Sequence[Object]) -> list[Object]:
        """Return what bears a wanted name and isn't in `live`: a stranger's, or ours without its label."""
        there = {(o["kind"], o["metadata"]["name"]) for o in live}
        names = [(m["kind"], m["metadata"]["name"]) for m in intent]
        asked = [self._api.get(resource_of(k), namespace, n) for k, n in names if (k, n) not in there]
        return [item for item in await gathered(asked) if item is not None]

    def wrote(self, resource: Resource, body: Object) -> None:
        """Store the server's answer to a write of ours; its event is then no news."""
        if body.get("metadata", {}).get("resourceVersion"):
            self._store.take(resource, body)

    def removed(self, resource: Resource, namespace: str, name: str) -> None:
        """Forget an object that we have deleted."""
        self._store.forget(resource, namespace, name)

    async def _gathered(self, key: Key, now: datetime, store: ObjectStore | None) -> list[Object]:
        selector = f"{naming.PIPELINE}={key.name}"
        objects: list[Object] = []
        asked: list[Awaitable[list[Object]]] = []
        for kind in (*CHILDREN, PODS):
            seen = store.of(kind, key) if store is not None else None
            if seen is None:
                asked.append(self._api.items(kind, key.namespace, selector))
            else:
                objects += seen
                if len(seen) > MANY:
                    await asyncio.sleep(0)
        asked.append(self._routes(key.namespace, selector, now))
        return objects + [item for many in await gathered(asked) for item in many]

    async def _routes(self, namespace: str, selector: str, now: datetime) -> list[Object]:
        """Return the HTTPRoutes; a cluster without them is asked again after a while."""
        if self._ask_at is not None and now < self._ask_at:
            return []
        try:
            routes = await self._api.items(ROUTES, namespace, selector)
        except ApiError as error:
            if error.code not in (403, 404):
                raise
            self._ask_at, self.no_routes = now + timedelta(seconds=ROUTES_SECONDS), error.message
            return []
        self._ask_at, self.no_routes = None, ""
        return routes


def _expect_nothing(resource: Resource, namespace: str, version: int) -> None:
    """Ignore a version: nothing is watched."""


async def gathered(asked: Iterable[Awaitable[T]]) -> list[T]:
    """Return all answers; raise the first failure as it is, after the others have ended."""
    results = await asyncio.gather(*asked, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


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
