"""Reads a pipeline's objects: `ClusterReader`, out of the store where that is live, else from the server.

The store may lag behind. So it only answers whether there is anything to do: a creation is
refused where anything has the name, and before any other write all is listed again. And where a
pipeline stands still on its way, what it waits for is asked for: a watch may have stalled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import CHILDREN, PODS, ROUTES, Key, Resource, resource_of
from dynamo.operator.manifests import naming

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

    async def refresh(self, key: Key, now: datetime) -> None:
        """Ask the server for what watches should have delivered; do nothing if another pipeline has just asked."""
        if self._spared_until is not None and now < self._spared_until:
            return
        self._spared_until = now + timedelta(seconds=SPARING_SECONDS)
        live = [kind for kind in AWAITED if self._store.of(kind, key) is not None]
        await gathered(self._asked(kind, key) for kind in live)

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
