"""The API server as the reconciler needs it: `Api`, one aiohttp session of our own.

Not kopf's session: sharing that makes kopf hang after a fatal watcher error. Every request
has a deadline and pays from the budget; every refusal is an `ApiError`; what it means is
`answers.verdict`'s business.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import aiohttp
import msgspec

from dynamo.operator.answers import ApiError, error_of
from dynamo.operator.budget import Budget
from dynamo.operator.kinds import PIPELINES, Resource

MANAGER = "dynamo-operator"
TIMEOUT = 30.0
NEVER = "1"
"""No object has this resourceVersion: an apply that bears it creates, or is refused with a conflict."""
PAGE = 100
AT_ONCE = 64
"""Connections for requests; watches have theirs besides."""
WATCH_SECONDS = 290
SILENT_SECONDS = 100.0
"""The server sends a bookmark every minute; a stream without is dead."""
EVENT_BYTES = 16 << 20
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
        self._gate = asyncio.Semaphore(AT_ONCE)

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
            return await self._whole(resource, namespace, selector, heads_only)
        except ApiError as error:
            if error.code != 410:
                raise
            return await self._whole(resource, namespace, selector, heads_only)

    async def pages(
        self, resource: Resource, namespace: str | None = None, selector: str = "", *, heads_only: bool = False
    ) -> AsyncIterator[Object]:
        """The same, a page at a time: `items`, and `metadata.resourceVersion`, from which a watch goes on."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._send("GET", resource.path(namespace), query, heads=heads_only)
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            yield {**page, "items": [{**item, **kind} for item in page.get("items") or []]}
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            query = {**query, "continue": token}

    async def watch(
        self,
        resource: Resource,
        namespace: str | None,
        selector: str,
        version: str,
        seconds: float = WATCH_SECONDS,
    ) -> AsyncIterator[Object]:
        """Events after a resourceVersion, bookmarks too, until the server ends the stream
        (after `seconds`, WATCH_SECONDS at most) or is silent for too long.

        Raises `ApiError`; with 410 the version is too old.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(math.ceil(min(seconds, WATCH_SECONDS)))}
        query |= {"labelSelector": selector} if selector else {}
        await asyncio.sleep(self._budget.take(time.monotonic()))
        answer = await self._opened(resource.path(namespace), query)
        try:
            async with answer:
                async for line in _lines(answer.content):
                    event = _decoded(line)
                    if event.get("type") == "ERROR":
                        said = event.get("object") or {}
                        raise ApiError(int(said.get("code", 500)), str(said.get("message", "the watch failed")))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError):
            return

    async def exists(self, resource: Resource, namespace: str | None = None) -> None:
        """Raises `ApiError` where the kind is missing or may not be read."""
        await self._send("GET", resource.path(namespace), {"limit": "1"})

    async def apply(self, resource: Resource, manifest: Object, uid: str | None) -> Object:
        """Server-side apply: to the object with this uid or, without one, to nothing; a namesake answers 409."""
        metadata = manifest["metadata"]
        which = {"resourceVersion": NEVER} if uid is None else {"uid": uid}
        manifest = {**manifest, "metadata": {**metadata, **which}}
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

    async def write_status(self, pipeline: Object, before: Object, after: Object) -> Object:
        """Makes the status `after`; fields that it doesn't have any more go.

        A pipeline that has changed since it was read answers 409: what was found out of an old one isn't told of it.
        """
        metadata = pipeline["metadata"]
        changed = {k: v for k, v in after.items() if before.get(k) != v}
        which = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {"metadata": which, "status": changed | {k: None for k in before if k not in after}}
        path = PIPELINES.path(metadata["namespace"], metadata["name"], "status")
        return await self._send("PATCH", path, {"fieldManager": MANAGER}, body, MERGE)

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """A new object; refused with 409 where the name is taken."""
        return await self._send("POST", resource.path(namespace), {"fieldManager": MANAGER}, body)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """The object as a whole, if its resourceVersion is still the one in `body`."""
        return await self._send("PUT", resource.path(namespace, name), {"fieldManager": MANAGER}, body)

    async def _whole(self, resource: Resource, namespace: str | None, selector: str, heads: bool) -> list[Object]:
        pages = self.pages(resource, namespace, selector, heads_only=heads)
        return [item async for page in pages for item in page["items"]]

    async def _opened(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        """A stream that has begun."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENT_SECONDS)
        headers = {"Accept": PLAIN, "User-Agent": MANAGER, **self._credentials()}
        code = 0
        try:
            async with asyncio.timeout(TIMEOUT):
                answer = await self._session.get(self._server + path, params=query, headers=headers, timeout=timeout)
                code = answer.status
                if code >= 400:
                    async with answer:
                        raise error_of(code, await answer.text(), answer.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server did not answer: {error or type(error).__name__}") from error
        finally:
            if self._count:
                self._count("WATCH", code)
            if code == 401:
                self._credentials(refused=True)
        return answer

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
        self, method: str, path: str, query: Mapping[str, str] | None, data: bytes | None, headers: Mapping[str, str]
    ) -> Object:
        await asyncio.sleep(self._budget.take(time.monotonic()))
        code = 0
        try:
            async with self._gate, asyncio.timeout(TIMEOUT):
                answer = await self._session.request(
                    method, self._server + path, params=query, data=data, headers=headers
                )
                async with answer:
                    code, text = answer.status, await answer.read()
                    if code >= 400:
                        raise error_of(code, text.decode(errors="replace"), answer.headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(0, f"the API server did not answer: {error or type(error).__name__}") from error
        finally:
            if self._count:
                self._count(method, code)
        return _decoded(text)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Of any length up to `EVENT_BYTES`: aiohttp's own limit is less than an object may have."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > EVENT_BYTES:
            raise ApiError(0, f"the API server sent an event of more than {EVENT_BYTES} bytes")


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


def _decoded(text: bytes) -> Object:
    try:
        found = msgspec.json.decode(text)
    except ValueError:
        raise ApiError(0, "the API server sent something that is no JSON") from None
    if not isinstance(found, dict):
        raise ApiError(0, "the API server sent something that is no object")
    return found
