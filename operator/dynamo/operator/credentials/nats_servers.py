"""A NATS for each namespace: `NatsServers`, the shell around `nats_trust` and `manifests.nats`.

A reconcile asks for it before it makes a user. The store only answers whether there is anything to do:
before a write all is read again, and each write bears the uid and version of what was read. The Secret comes first,
and alone, since the pod's template bears a digest of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from dynamo.operator.api.conditions import Trouble
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.cluster.objects import ChangeWriter, ClusterReader, gathered
from dynamo.operator.cluster.writes import Apply, Conflict
from dynamo.operator.credentials import nats_changes
from dynamo.operator.credentials.nats_trust import Trust, trust_of
from dynamo.operator.credentials.platform import PlatformError
from dynamo.operator.credentials.secret import data_in
from dynamo.operator.kube.client import Api, Object
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import PIPELINES, PODS, SECRETS, Key, Resource, resource_of
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.context import RenderContext
from dynamo.operator.manifests.nats import NatsServer

_WRITTEN: Final = tuple(resource_of(kind) for kind in ("Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"))
_CERTIFICATES: Final = ("ca.crt", "tls.crt", "tls.key")


class _Wanted(NamedTuple):
    """Writes, in their order, and what users are made with after them."""

    secret: list[Apply | Conflict]
    rest: list[Apply | Conflict]
    trust: Trust


class NatsServers:
    """Makes the NATS servers of namespaces; shared by all reconciles, remembers nothing."""

    def __init__(self, api: Api, server: NatsServer | None) -> None:
        self._api, self._server = api, server
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By namespace: two reconciles at once would both make what is missing."""

    def serve(self, pipeline: DynamoPipeline) -> bool:
        """Return whether a pipeline uses its namespace's NATS."""
        return self._server is not None and not pipeline.spec.runtime.nats.url

    def places(self, pipeline: DynamoPipeline, namespace: str) -> list[Key]:
        """Return the key under which the store has the server's objects; none where the pipeline doesn't use it."""
        return [Key(namespace, nats.GROUP)] if self.serve(pipeline) else []

    async def live(self, pipeline: DynamoPipeline, namespace: str, reader: ClusterReader) -> list[Object] | None:
        """Return the server's objects and pods as the store has them; None where the pipeline doesn't use it."""
        if not self.serve(pipeline):
            return None
        return await reader.some((*_WRITTEN, PODS), Key(namespace, nats.GROUP))

    async def ready(
        self,
        context: RenderContext,
        live: Sequence[Object],
        writer: ChangeWriter,
        before: Callable[[], Awaitable[None]],
    ) -> Trust | Trouble:
        """Return what users are made with, once all is written; `before` is awaited if there is something to write.

        Raises `PlatformError`, `ApiError`, `AgainError`.
        """
        async with self._turns.setdefault(context.kubernetes_namespace, asyncio.Lock()):
            wanted = await self._wanted(context, live)
            if wanted.secret or wanted.rest:
                await before()
            for part in (wanted.secret, wanted.rest):
                if (trouble := await writer.write_all(part)) is not None:
                    return trouble
            return wanted.trust

    async def _wanted(self, context: RenderContext, live: Sequence[Object]) -> _Wanted:
        if self._server is None:
            raise PlatformError("no NATS per namespace is configured")
        namespace, server = context.kubernetes_namespace, self._server
        certificates = await self._certificates(server, namespace)
        secret = await self._api.get(SECRETS, namespace, nats.NAME)
        if secret is not None and secret["metadata"].get("deletionTimestamp"):
            raise ApiError(0, f"waiting for the Secret {nats.NAME} of deleted pipelines to be removed")
        kept = data_in(secret) if secret is not None and nats_changes.is_ours(secret) else {}
        public = {file: certificates[file] for file in _CERTIFICATES[:1] if file in certificates}
        routes = nats.routes_host(namespace) if server.clustered else ""
        trust = trust_of(kept, server.config, lambda: os.urandom(32), int(time.time()), public, routes)
        wanted = nats.manifests(server, namespace, trust.data, certificates.get("tls.crt", b""))
        seen = [*live, secret] if secret is not None else live
        owners = [nats_changes.owner(context.pipeline, context.uid)]
        if next(nats_changes.needed(wanted, seen, owners), None) is None:
            return _Wanted([], [], trust)
        owners += nats_changes.owners_in(await self._api.items(PIPELINES, namespace, heads_only=True))
        names = [(resource_of(manifest["kind"]), manifest["metadata"]["name"]) for manifest in wanted]
        objects = await gathered(self._api.get(kind, namespace, name) for kind, name in names if kind != SECRETS)
        fresh = [item for item in (secret, *objects) if item is not None]
        return _split(list(nats_changes.needed(wanted, fresh, owners)), trust)

    async def _certificates(self, server: NatsServer, namespace: str) -> dict[str, bytes]:
        """Return the server's, which lie in its namespace: one key for all would be every tenant's to read."""
        if not server.tls_secret:
            return {}
        secret = await self._api.get(SECRETS, namespace, server.tls_secret)
        data = data_in(secret) if secret is not None else {}
        if missing := [file for file in _CERTIFICATES if file not in data]:
            raise PlatformError(
                f"Secret {namespace}/{server.tls_secret} lacks {', '.join(missing)}: create it with a certificate for "
                f"{nats.host(namespace)}"
            )
        return data


def _split(todo: Sequence[Apply | Conflict], trust: Trust) -> _Wanted:
    secret = [change for change in todo if _kind(change) == SECRETS]
    return _Wanted(secret, [change for change in todo if _kind(change) != SECRETS], trust)


def _kind(change: Apply | Conflict) -> Resource:
    return resource_of(change.manifest["kind"] if isinstance(change, Apply) else change.kind)
