"""What a look reads of the cluster: `Reading`, out of the mirror where that is live, else from the server.

The mirror may lag behind. So it only answers whether there is anything to do: a creation is
refused where anything has the name, and before any other write all is listed anew. And where a
pipeline stands still on its way, what it waits for is asked for: a watch may have stalled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from dynamo.operator.answers import ApiError
from dynamo.operator.dirty import Key
from dynamo.operator.kinds import CHILDREN, PODS, ROUTES, Resource, resource_of
from dynamo.operator.kube import Api, Object
from dynamo.operator.mirror import Mirror
from dynamo.operator.resources import naming

T = TypeVar("T")
Missed = Callable[[Resource, str, int], None]
"""Called with a kind, a namespace, and the version of an object that a LIST had and no watch has told."""
AWAITED = (PODS, resource_of("Deployment"))
"""What a pipeline on its way waits for; all else is ours to write."""
SPARING_SECONDS = 1.0
"""Between two pipelines that are asked for because they stand still: one that finds a stalled watch helps all."""
ROUTES_SECONDS = 60.0
"""How long a cluster without HTTPRoutes is believed to have none."""


class Reading:
    """All looks share it."""

    def __init__(self, api: Api, mirror: Mirror | None = None, missed: Missed | None = None) -> None:
        self._api, self._mirror = api, mirror if mirror is not None else Mirror()
        self._missed: Missed = missed or _nobody
        self._spared_until: datetime | None = None
        self._ask_at: datetime | None = None
        self.no_routes = ""
        """Why there are no HTTPRoutes: the server's sentence."""

    async def known(self, key: Key, now: datetime) -> list[Object]:
        """Everything with the pipeline's label, as the mirror has it."""
        return await self._gathered(key, now, self._mirror)

    async def asked_again(self, key: Key, now: datetime) -> None:
        """Takes in what the watches should have told of a pipeline; nothing where somebody else has just asked."""
        if self._spared_until is not None and now < self._spared_until:
            return
        self._spared_until = now + timedelta(seconds=SPARING_SECONDS)
        live = [kind for kind in AWAITED if self._mirror.of(kind, key) is not None]
        await gathered(self._asked(kind, key) for kind in live)

    async def _asked(self, kind: Resource, key: Key) -> None:
        names: list[tuple[str, str]] = []
        newest, version = 0, "0"
        async for page in self._api.pages(kind, key.namespace, f"{naming.PIPELINE}={key.name}"):
            for item in page["items"]:
                names.append((key.namespace, item["metadata"]["name"]))
                if self._mirror.take(kind, item):
                    newest = max(newest, int(item["metadata"]["resourceVersion"]))
            version = page["metadata"]["resourceVersion"]
        self._mirror.listed(kind, key.namespace, names, version, of=key)
        if newest:
            # Not the LIST's own version, which may be that of another kind: no event of this one ever bears it.
            self._missed(kind, key.namespace, newest)

    async def listed(self, key: Key, now: datetime) -> list[Object]:
        """Everything with the pipeline's label, as of now."""
        return await self._gathered(key, now, None)

    async def namesakes(self, namespace: str, intent: Sequence[Object], live: Sequence[Object]) -> list[Object]:
        """What bears a wanted name and isn't in `live`: a stranger's, or ours without its label."""
        there = {(o["kind"], o["metadata"]["name"]) for o in live}
        names = [(m["kind"], m["metadata"]["name"]) for m in intent]
        asked = [self._api.get(resource_of(k), namespace, n) for k, n in names if (k, n) not in there]
        return [found for found in await gathered(asked) if found is not None]

    def wrote(self, resource: Resource, found: Object) -> None:
        """The server's answer to a write of ours; its event is then no news."""
        if found.get("metadata", {}).get("resourceVersion"):
            self._mirror.take(resource, found)

    def removed(self, resource: Resource, namespace: str, name: str) -> None:
        """We have deleted it."""
        self._mirror.forget(resource, namespace, name)

    async def _gathered(self, key: Key, now: datetime, mirror: Mirror | None) -> list[Object]:
        selector = f"{naming.PIPELINE}={key.name}"
        found: list[Object] = []
        asked: list[Awaitable[list[Object]]] = []
        for kind in (*CHILDREN, PODS):
            seen = mirror.of(kind, key) if mirror is not None else None
            if seen is None:
                asked.append(self._api.items(kind, key.namespace, selector))
            else:
                found += seen
        asked.append(self._routes(key.namespace, selector, now))
        return found + [one for many in await gathered(asked) for one in many]

    async def _routes(self, namespace: str, selector: str, now: datetime) -> list[Object]:
        """Not every cluster has HTTPRoutes; one without is asked again after a while."""
        if self._ask_at is not None and now < self._ask_at:
            return []
        try:
            found = await self._api.items(ROUTES, namespace, selector)
        except ApiError as error:
            if error.code not in (403, 404):
                raise
            self._ask_at, self.no_routes = now + timedelta(seconds=ROUTES_SECONDS), error.message
            return []
        self._ask_at, self.no_routes = None, ""
        return found


def _nobody(resource: Resource, namespace: str, version: int) -> None:
    """Nothing is watched."""


async def gathered(asked: Iterable[Awaitable[T]]) -> list[T]:
    """All answers; the first failure as it is, after the others have ended."""
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]
