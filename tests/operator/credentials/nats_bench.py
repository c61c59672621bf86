"""An operator with a NATS for each namespace, and the API server in memory that its tests work on."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from tests.operator.apiserver import ApiServer
from tests.operator.credentials.bench import NOW
from tests.operator.pipelines import SMALLEST, Spec, body

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials import permissions as rights
from dynamo.operator.credentials.nats_keys import NatsIssuer
from dynamo.operator.credentials.pipeline_access import Access
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests import nats
from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.manifests.nats import NatsServer
from dynamo.operator.reconcile.reconciler import Outcome, Reconciler
from dynamo.operator.settings import Settings

CLUSTER_SETTINGS = ClusterSettings("dynamo/frontend:1", {"default": "dynamo/worker:1"}, nats_sign_in=True)
SERVER = NatsServer("max_payload: 1048576\n", {"spec": {"containers": [{"name": "nats", "image": "nats:1"}]}})
KINDS = ("Secret", "Service", "NetworkPolicy", "Deployment")


class Bench:
    """An operator and its API server; `look` lets Kubernetes' controllers work afterwards."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession, given: NatsServer | None) -> None:
        self.server, self.api = server, Api(session, server.url)
        self.start(given)

    def start(self, given: NatsServer | None) -> None:
        """A new operator process."""
        settings = Settings(
            ("http://etcd:2379",), "nats://nats:4222", CLUSTER_SETTINGS, own_namespace="dynamo", nats_server=given
        )
        self.reconciler = Reconciler(self.api, settings, lambda: NOW, Access(self.api, settings))

    def ask(self, name: str = "llama", namespace: str = "serving", spec: Spec = SMALLEST) -> None:
        manifest = body(spec, name)
        manifest["metadata"] |= {"namespace": namespace, "uid": f"uid of {namespace}/{name}"}
        self.server.put(manifest, namespace)

    async def reconcile(self, name: str = "llama", namespace: str = "serving") -> Outcome:
        outcome = await self.reconciler.reconcile(Key(namespace, name))
        self.server.play()
        return outcome

    def one(self, kind: str, namespace: str = "serving") -> dict[str, Any]:
        return self.server.one(kind, nats.NAME, namespace)

    def data(self, name: str = nats.NAME, namespace: str = "serving") -> dict[str, bytes]:
        return {k: base64.b64decode(v) for k, v in self.server.one("Secret", name, namespace)["data"].items()}

    def is_let_in(self, name: str = "llama", namespace: str = "serving", by: str = "serving") -> bool:
        """Whether the server of `by` knows the user of a pipeline."""
        issuer, subjects = NatsIssuer.of(self.data(namespace=by)), rights.subjects(f"{namespace}_{name}")
        return nats_keys.is_user_of(self.data(f"{name}-credentials", namespace)["nats.user.creds"], issuer, subjects)

    def owners(self, kind: str) -> set[str]:
        return {entry["name"] for entry in self.one(kind)["metadata"]["ownerReferences"]}

    def condition(self, kind: str, name: str = "llama") -> tuple[str, str, str]:
        conditions = self.server.one("DynamoPipeline", name)["status"]["conditions"]
        return next((c["status"], c["reason"], c["message"]) for c in conditions if c["type"] == kind)

    def fingerprint(self) -> dict[str, Any]:
        """Their heads, without what differs from run to run or with the keys."""
        kept = ("name", "namespace", "labels", "ownerReferences")
        return {kind: {key: self.one(kind)["metadata"][key] for key in kept} for kind in KINDS}


def run(case: Callable[[Bench], Awaitable[None]], given: NatsServer | None = SERVER) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), ApiServer() as server, aiohttp.ClientSession() as session:
            bench = Bench(server, session, given)
            bench.ask()
            await case(bench)

    asyncio.run(main())
