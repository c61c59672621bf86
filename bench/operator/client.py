"""The users: make pipelines at a pace or all at once, and see when each becomes Ready."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from bench.operator.plane import Plane
from bench.processes import BenchError

PIPELINES = "/apis/dynamo.dev/v1alpha1/namespaces/{}/dynamopipelines"
EVERYWHERE = "/apis/dynamo.dev/v1alpha1/dynamopipelines"
NAMESPACES = tuple(f"team-{i}" for i in range(10))
AT_ONCE = 32
CHILDREN = 7
"""Objects of one mocker pipeline."""

Object = dict[str, Any]


class Client:
    """A user's session; `ready` has when each pipeline was first seen Ready (seconds since the epoch)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self.begun: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None

    async def send(self, method: str, path: str, body: object = None, content: str = "application/json") -> Object:
        """One request; raises `BenchError` with the server's sentence."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._url + path, data=data, headers={"Content-Type": content}
        ) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise BenchError(f"{method} {path}: {text[:500]}")
        found: Object = json.loads(text)
        return found

    async def create(self, namespace: str, body: Object) -> None:
        """One pipeline."""
        self.begun[f"{namespace}/{body['metadata']['name']}"] = time.time()
        await self.send("POST", PIPELINES.format(namespace), body)

    async def paced(self, numbers: Sequence[int], rate: float, prefix: str = "p") -> None:
        """So many a second, whatever becomes of the ones before."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for index, number in enumerate(numbers):
                await asyncio.sleep(max(0.0, start + index / rate - time.monotonic()))
                group.create_task(self.create(*mocker(number, prefix)))

    async def at_once(self, numbers: Sequence[int]) -> None:
        """As fast as the server takes them, `AT_ONCE` at a time."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await self.create(*mocker(number))

        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(one(number))

    async def until_ready(self, keys: Sequence[str], seconds: float) -> None:
        """Waits for all of them."""
        end = time.monotonic() + seconds
        while missing := [k for k in keys if k not in self.ready]:
            if time.monotonic() > end:
                raise BenchError(
                    f"{len(missing)} pipelines aren't Ready after {seconds:.0f} s, {missing[0]} among them"
                )
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Notes who becomes Ready, until cancelled."""
        while True:
            query = {"watch": "true", "timeoutSeconds": "3000"}
            async with self._session.get(self._url + EVERYWHERE, params=query) as answer:
                async for line in answer.content:
                    self._note(json.loads(line))

    def _note(self, event: Object) -> None:
        body = event["object"]
        key = f"{body['metadata'].get('namespace')}/{body['metadata'].get('name')}"
        conditions = body.get("status", {}).get("conditions", []) if isinstance(body.get("status"), dict) else []
        if event["type"] != "DELETED" and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            self.ready.setdefault(key, time.time())


@asynccontextmanager
async def opened(plane: Plane, kind: type[Client] | None = None) -> AsyncIterator[Client]:
    """A client that watches; its namespaces are there."""
    trust = ssl.create_default_context(cafile=str(plane.authority))
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    headers = {"Authorization": f"Bearer {plane.tokens['client']}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout, read_bufsize=1 << 20, trust_env=False
    ) as session:
        client = (kind or Client)(session, plane.url)
        watching = asyncio.create_task(client.watch())
        try:
            yield client
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def mocker(number: int, prefix: str = "p") -> tuple[str, Object]:
    """Namespace and body of a pipeline with one frontend and two workers: seven objects, three pods."""
    body = {
        "apiVersion": "dynamo.dev/v1alpha1",
        "kind": "DynamoPipeline",
        "metadata": {"name": f"{prefix}-{number:05d}"},
        "spec": {"replicas": 2, "components": [{"engine": "mocker"}]},
    }
    return NAMESPACES[number % len(NAMESPACES)], body


def key_of(number: int, prefix: str = "p") -> str:
    """As in `Client.ready`."""
    namespace, body = mocker(number, prefix)
    return f"{namespace}/{body['metadata']['name']}"
