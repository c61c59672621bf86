"""A pipeline, the reconciler and the servers whose users it makes: what the tests of `Access` work on."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from tests.fixtures_etcd import EtcdServer
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, Spec, body

from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth
from dynamo.operator.credentials.etcd_users import Owner
from dynamo.operator.credentials.pipeline_access import Access
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.resources import Key
from dynamo.operator.manifests.context import ClusterSettings
from dynamo.operator.reconcile.reconciler import Outcome, Reconciler
from dynamo.operator.settings import Settings, SignIn

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LLAMA = Owner("serving", "llama")
CLUSTER_SETTINGS = ClusterSettings(
    "dynamo/frontend:1", {"default": "dynamo/worker:1"}, etcd_sign_in=True, nats_sign_in=True
)


OURS_ETCD = SignIn(secret="p-etcd", make_secret=True, own_server=True)
OURS_NATS = SignIn(secret="p-nats", make_secret=True, own_server=True)


def settings(etcd: EtcdServer, nats: SignIn = OURS_NATS) -> Settings:
    return Settings(
        (etcd.url,),
        "nats://nats:4222",
        CLUSTER_SETTINGS,
        own_namespace="dynamo",
        lease="op",
        etcd_sign_in=OURS_ETCD,
        nats_sign_in=nats,
    )


def plain(etcd: EtcdServer) -> Settings:
    """Of a platform that asks for no sign-in."""
    return Settings((etcd.url,), "nats://nats:4222", ClusterSettings("f:1", {"default": "w:1"}), own_namespace="dynamo")


class Bench:
    """A pipeline, the reconciler, and what an operator has beside it; `time` is the operator's clock."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession, etcd: EtcdServer, given: Settings) -> None:
        self.server, self.session, self.etcd, self.settings = server, session, etcd, given
        self.api = Api(session, server.url)
        self.time = 1000.0
        self.marked: list[Owner] = []
        self._opened: list[Access] = []
        self.start()

    def start(self) -> None:
        """A new operator process."""
        self.access = Access(self.api, self.settings, lambda: self.time)
        self.reconciler = Reconciler(self.api, self.settings, lambda: NOW, self.access)
        self._opened.append(self.access)

    async def close(self) -> None:
        for entry in self._opened:
            await entry.close()

    async def reconcile(self, name: str = "llama", namespace: str = "serving") -> Outcome:
        outcome = await self.reconciler.reconcile(Key(namespace, name))
        self.server.play()
        return outcome

    async def round(self) -> float:
        return await self.access._round(self.marked.append)

    async def users(self) -> set[str]:
        data = self.secret("p-etcd", "dynamo")
        async with aiohttp.ClientSession() as session:
            auth = EtcdAuth(session, [self.etcd.url], EtcdAdmin("root", data["password"].decode()))
            return {name.partition("/")[2] for name in await auth.names()} - {""}

    def secret(self, name: str = "llama-credentials", namespace: str = "serving") -> dict[str, bytes]:
        return {k: base64.b64decode(v) for k, v in self.server.one("Secret", name, namespace)["data"].items()}

    def mounted(self, folder: Path, name: str = "llama-credentials") -> Path:
        """As kubelet lays it out."""
        for key, content in self.secret(name).items():
            server, _, file = key.partition(".")
            (folder / server).mkdir(parents=True, exist_ok=True)
            (folder / server / file).write_bytes(content)
        return folder

    def condition(self, kind: str) -> tuple[str, str, str]:
        conditions = self.server.one("DynamoPipeline", "llama")["status"]["conditions"]
        return next((c["status"], c["reason"], c["message"]) for c in conditions if c["type"] == kind)


@contextlib.asynccontextmanager
async def opened(etcd: EtcdServer, spec: Spec, given: Settings | None) -> AsyncIterator[Bench]:
    async with ApiServer() as server, aiohttp.ClientSession() as session:
        bench = Bench(server, session, etcd, given or settings(etcd))
        server.put(body(spec))
        try:
            yield bench
        finally:
            await bench.close()


def run(
    etcd: EtcdServer, case: Callable[[Bench], Awaitable[None]], spec: Spec = SMALLEST, given: Settings | None = None
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), opened(etcd, spec, given) as bench:
            await case(bench)

    asyncio.run(main())
