"""The API server as the reconciler needs it: `Api`, one aiohttp session of our own.

Not kopf's session: sharing that makes kopf hang after a fatal watcher error. Every request
has a deadline, pays from the budget and waits in its namespace's lane; every refusal is an `ApiError`; what it means is
`errors.verdict`'s business.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import aiohttp
import msgspec

from dynamo.operator.api.body import REFUSED
from dynamo.operator.api.bounds import DEPTH
from dynamo.operator.kube.errors import ApiError, error_of
from dynamo.operator.kube.resources import LEASES, PIPELINES, Resource
from dynamo.operator.namespace_turns import Budget, Lanes

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
    """Returns headers that say who we are; `refused`: the last ones were rejected."""

    def __call__(self, refused: bool = False) -> Mapping[str, str]:
        """Return the headers; cheap, since every request asks."""


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
        self._lanes, self._count = Lanes(AT_ONCE, budget or Budget()), count
        self._credentials: Credentials = credentials or _nobody

    async def close(self) -> None:
        """End the session."""
        await self._session.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """Return the object, or None where there is none."""
        try:
            return await self._send("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def items(
        self, resource: Resource, namespace: str | None = None, selector: str = "", *, heads_only: bool = False
    ) -> list[Object]:
        """Return all objects as of now, page by page; begun again once if a page's token is too old."""
        try:
            return await self._whole(resource, namespace, selector, heads_only)
        except ApiError as error:
            if error.code != 410:
                raise
            return await self._whole(resource, namespace, selector, heads_only)

    async def pages(
        self, resource: Resource, namespace: str | None = None, selector: str = "", *, heads_only: bool = False
    ) -> AsyncIterator[Object]:
        """Yield a page at a time: `items`, and `metadata.resourceVersion`, from which a watch goes on."""
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._send("GET", resource.path(namespace), query, accept=_HEADS if heads_only else PLAIN)
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
        """Yield events after a resourceVersion, bookmarks too, until the server ends the stream
        (after `seconds`, WATCH_SECONDS at most) or is silent for too long.

        Raises `ApiError`; with 410 the version is too old.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        query |= {"timeoutSeconds": str(math.ceil(min(seconds, WATCH_SECONDS)))}
        query |= {"labelSelector": selector} if selector else {}
        async with self._lanes.turn(_lane(resource.path(namespace))):
            answer = await self._opened(resource.path(namespace), query)
        try:
            async with answer:
                async for line in _lines(answer.content):
                    event = _decoded(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise ApiError(int(status.get("code", 500)), str(status.get("message", "the watch failed")))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError):
            return

    async def exists(self, resource: Resource, namespace: str | None = None) -> None:
        """Read a kind; raises `ApiError` where it is missing or may not be read."""
        await self._send("GET", resource.path(namespace), {"limit": "1"})

    async def apply(self, resource: Resource, manifest: Object, uid: str | None, version: str = "") -> Object:
        """Apply on the server, to the object with this uid (in this version, if given) or, without one, to nothing.

        A namesake, or another version, answers 409.
        """
        metadata = manifest["metadata"]
        which = {"resourceVersion": NEVER} if uid is None else _which(uid, version)
        manifest = {**manifest, "metadata": {**metadata, **which}}
        path = resource.path(metadata["namespace"], metadata["name"])
        return await self._send(
            "PATCH", path=path, query={"fieldManager": MANAGER, "force": "true"}, body=manifest, content=APPLY
        )

    async def resize(
        self, resource: Resource, namespace: str, name: str, which: tuple[str, str], replicas: int
    ) -> Object:
        """Set the replicas alone; `which` is uid and resourceVersion."""
        body = {"metadata": _which(*which), "spec": {"replicas": replicas}}
        return await self._send(
            "PATCH", path=resource.path(namespace, name), query={"fieldManager": MANAGER}, body=body, content=MERGE
        )

    async def delete(self, resource: Resource, namespace: str, name: str, which: tuple[str, str]) -> None:
        """Delete the object of this uid and version and, in the background, what it owns; no error if it is gone."""
        body = {"preconditions": _which(*which), "propagationPolicy": "Background"}
        try:
            await self._send("DELETE", resource.path(namespace, name), None, body)
        except ApiError as error:
            if error.code != 404:
                raise

    async def write_status(self, pipeline: Object, before: Object, after: Object) -> Object:
        """Make the status `after`; fields that it doesn't have any more go.

        A pipeline that has changed since it was read answers 409: a status of an old version isn't written to it.
        """
        metadata = pipeline["metadata"]
        changed = {k: v for k, v in after.items() if before.get(k) != v}
        which = {name: metadata[name] for name in ("uid", "resourceVersion")}
        body = {"metadata": which, "status": changed | {k: None for k in before if k not in after}}
        path = PIPELINES.path(metadata["namespace"], metadata["name"], "status")
        if REFUSED not in pipeline:
            return await self._send("PATCH", path=path, query={"fieldManager": MANAGER}, body=body, content=MERGE)
        head = await self._send(
            "PATCH", path=path, query={"fieldManager": MANAGER}, body=body, content=MERGE, accept=_HEAD
        )
        return {**pipeline, "metadata": head["metadata"], "status": after}

    async def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Create an object; refused with 409 where the name is taken."""
        return await self._send("POST", resource.path(namespace), {"fieldManager": MANAGER}, body)

    async def replace(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """Replace the object as a whole, if its resourceVersion is still the one in `body`."""
        return await self._send("PUT", resource.path(namespace, name), {"fieldManager": MANAGER}, body)

    async def _whole(self, resource: Resource, namespace: str | None, selector: str, heads: bool) -> list[Object]:
        pages = self.pages(resource, namespace, selector, heads_only=heads)
        return [item async for page in pages for item in page["items"]]

    async def _opened(self, path: str, query: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Open a stream."""
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
        accept: str = PLAIN,
    ) -> Object:
        headers = {"Accept": accept, "User-Agent": MANAGER}
        if body is not None:
            headers["Content-Type"] = content
        who = self._credentials()
        try:
            return await self._sent(method, path=path, query=query, body=body, headers={**headers, **who})
        except ApiError as error:
            # A token that ran out is replaced in its file before long; the request was not carried out.
            if error.code != 401 or (now := self._credentials(refused=True)) == who:
                raise
        return await self._sent(method, path=path, query=query, body=body, headers={**headers, **now})

    async def _sent(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Object | None, headers: Mapping[str, str]
    ) -> Object:
        code = 0
        try:
            async with self._lanes.turn(_lane(path)), asyncio.timeout(TIMEOUT):
                data = None if body is None else encoded(body)  # not before: a thousand may wait
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
        if PIPELINES.plural in path and is_deep(text):
            raise ApiError(0, "the pipeline is nested too deeply to be read")
        return _decoded(text)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length up to `EVENT_BYTES`: aiohttp's own limit is less than an object may have."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > EVENT_BYTES:
            raise ApiError(0, f"the API server sent an event of more than {EVENT_BYTES} bytes")


def is_deep(text: bytes, most: int = 2 * DEPTH) -> bool:
    """Return whether JSON nests more deeply than a reader that recurses should be asked to read."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += (bracket.lastgroup == "opens") - (bracket.lastgroup == "closes")
        if depth > most:
            return True
    return False


def _which(uid: str, version: str) -> dict[str, str]:
    return {"uid": uid, "resourceVersion": version} if version else {"uid": uid}


def _nobody(refused: bool = False) -> Mapping[str, str]:
    return {}


def _lane(path: str) -> str:
    """Return the namespace's lane; what all depend on (the lease, lists of the whole cluster) has its own."""
    parts = path.split("/")
    return "" if "namespaces" not in parts[:-1] or LEASES.plural in parts else parts[parts.index("namespaces") + 1]


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|(?P<opens>[\[{])|(?P<closes>[\]}])')
_ESCAPED = re.compile("[\x7f-\uffff]")
_HEAD = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
_HEADS = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def encoded(body: Object) -> bytes:
    """Return JSON that is YAML too, since that is how an apply is read.

    There a character beyond U+FFFF can't be two escapes, and U+007F or a line separator can't stand as it is.
    """
    text = json.dumps(body, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def _decoded(text: bytes) -> Object:
    try:
        value = msgspec.json.decode(text)
    except ValueError:
        raise ApiError(0, "the API server's answer is not JSON") from None
    if not isinstance(value, dict):
        raise ApiError(0, "the API server's answer is not a JSON object")
    return value
