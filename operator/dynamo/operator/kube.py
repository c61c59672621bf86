"""The API server as the reconciler needs it: `Api`, one aiohttp session of our own.

Not kopf's session: sharing that makes kopf hang after a fatal watcher error. Every request
has a deadline and pays from the budget; every refusal is an `ApiError`; what it means is
`answers.verdict`'s business.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp

from dynamo.operator.answers import ApiError, error_of
from dynamo.operator.budget import Budget
from dynamo.operator.kinds import PIPELINES, Resource

MANAGER = "dynamo-operator"
TIMEOUT = 30.0
PAGE = 500
APPLY, MERGE, PLAIN = "application/apply-patch+yaml", "application/merge-patch+json", "application/json"

Object = dict[str, Any]
Count = Callable[[str, int], None]


class Credentials(Protocol):
    """Headers that say who we are; `refused`: the last ones were not believed."""

    def __call__(self, refused: bool = False) -> Mapping[str, str]:
        """Cheap: asked for every request."""


class Api:
    """Owns nothing but its session, which `close` ends."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        server: str,
        *,
        budget: Budget | None = None,
        count: Count | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._session, self._server = session, server.rstrip("/")
        self._budget, self._count = budget or Budget(), count
        self._credentials: Credentials = credentials or _nobody

    async def close(self) -> None:
        """Ends the session."""
        await self._session.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._send("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def items(
        self, resource: Resource, namespace: str | None = None, selector: str = "", *, heads_only: bool = False
    ) -> list[Object]:
        """All objects as of now, page by page; begun anew once if a page's token is too old."""
        try:
            return await self._pages(resource, namespace, selector, heads_only)
        except ApiError as error:
            if error.code != 410:
                raise
            return await self._pages(resource, namespace, selector, heads_only)

    async def exists(self, resource: Resource, namespace: str | None = None) -> None:
        """Raises `ApiError` where the kind is missing or may not be read."""
        await self._send("GET", resource.path(namespace), {"limit": "1"})

    async def apply(self, resource: Resource, manifest: Object, uid: str | None) -> Object:
        """Server-side apply. With the uid that was seen, so that no namesake is ever taken over."""
        metadata = manifest["metadata"]
        if uid is not None:
            manifest = {**manifest, "metadata": {**metadata, "uid": uid}}
        path = resource.path(metadata["namespace"], metadata["name"])
        return await self._send("PATCH", path, {"fieldManager": MANAGER, "force": "true"}, manifest, APPLY)

    async def resize(self, resource: Resource, namespace: str, name: str, uid: str, replicas: int) -> Object:
        """Only the replicas."""
        body = {"metadata": {"uid": uid}, "spec": {"replicas": replicas}}
        return await self._send("PATCH", resource.path(namespace, name), {"fieldManager": MANAGER}, body, MERGE)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """The object with this uid and, in the background, what it owns; fine if it is gone."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._send("DELETE", resource.path(namespace, name), None, body)
        except ApiError as error:
            if error.code != 404:
                raise

    async def write_status(self, namespace: str, name: str, uid: str, before: Object, after: Object) -> Object:
        """Makes the status `after`; fields that it doesn't have any more go."""
        changed = {k: v for k, v in after.items() if before.get(k) != v}
        body = {"metadata": {"uid": uid}, "status": changed | {k: None for k in before if k not in after}}
        path = PIPELINES.path(namespace, name, "status")
        return await self._send("PATCH", path, {"fieldManager": MANAGER}, body, MERGE)

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """A new object; refused with 409 where the name is taken."""
        return await self._send("POST", resource.path(namespace), {"fieldManager": MANAGER}, body)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """The object as a whole, if its resourceVersion is still the one in `body`."""
        return await self._send("PUT", resource.path(namespace, name), {"fieldManager": MANAGER}, body)

    async def _pages(self, resource: Resource, namespace: str | None, selector: str, heads: bool) -> list[Object]:
        found: list[Object] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._send("GET", resource.path(namespace), query, heads=heads)
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            found += [{**item, **kind} for item in page.get("items") or []]
            token = page.get("metadata", {}).get("continue")
            if not token:
                return found
            query = {**query, "continue": token}

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = PLAIN,
        *,
        heads: bool = False,
    ) -> Object:
        headers = {"Accept": _HEADS if heads else PLAIN, "User-Agent": MANAGER}
        if body is not None:
            headers["Content-Type"] = content
        data = None if body is None else encoded(body)
        who = self._credentials()
        try:
            return await self._sent(method, path, query, data, {**headers, **who})
        except ApiError as error:
            # A token that ran out is replaced in its file before long; the request was not carried out.
            if error.code != 401 or (now := self._credentials(refused=True)) == who:
                raise
        return await self._sent(method, path, query, data, {**headers, **now})

    async def _sent(
        self, method: str, path: str, query: Mapping[str, str] | None, data: str | None, headers: Mapping[str, str]
    ) -> Object:
        await asyncio.sleep(self._budget.take(time.monotonic()))
        code = 0
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._session.request(
                    method, self._server + path, params=query, data=data, headers=headers
                )
                async with answer:
                    code, text = answer.status, await answer.text()
                    if code >= 400:
                        raise error_of(code, text, answer.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server did not answer: {error or type(error).__name__}") from error
        finally:
            if self._count:
                self._count(method, code)
        return _decoded(text)


def _nobody(refused: bool = False) -> Mapping[str, str]:
    return {}


_ESCAPED = re.compile("[\x7f-\uffff]")
_HEADS = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def encoded(body: Object) -> bytes:
    """As JSON that is YAML too, since that is how an apply is read: there a character beyond U+FFFF can't be two
    escapes, and U+007F or a line separator can't stand as it is.
    """
    text = json.dumps(body, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


def _decoded(text: str) -> Object:
    try:
        found = json.loads(text)
    except ValueError:
        raise ApiError(0, "the API server sent something that is no JSON") from None
    if not isinstance(found, dict):
        raise ApiError(0, "the API server sent something that is no object")
    return found
