"""A leader that is paused at every point of a reconcile, and goes on after another has led: nothing of it is written.

The leader runs in a thread with an event loop that stands still before its n-th callback, as SIGSTOP makes it: every
await of a reconcile, of its requests and of its connections is such a point. The API server is the emulator, which
knows uids and versions; `e2e/apiserver/tenancy/test_fence.py` has the real one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tests.operator.apiserver import ApiServer
from tests.operator.pipelines import SMALLEST, Spec, body

from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.leader_election import Fence, fenced
from dynamo.operator.kube.resources import Key
from dynamo.operator.reconcile.reconciler import Reconciler
from dynamo.operator.settings import Settings

KEY = Key("serving", "llama")
SETTINGS = Settings.of(
    "{images: {frontend: f, workers: {default: w}}, etcd: {endpoints: [http://e:2379]}, nats: {url: nats://n}}", {}
)
EDITED: Spec = {"components": [{"engine": "mocker", "kvCacheBlockSize": 32}], "frontend": {"replicas": 2}}
SETTLED_RECONCILES = 8
DRAIN_SECONDS = 0.01
POINTS = 3000
"""More than a reconcile has."""


class _Counted(deque[Any]):
    """A loop's ready queue that stands still before the n-th callback."""

    def __init__(self, stop_at: int, stop: Callable[[], None]) -> None:
        super().__init__()
        self._left, self._stop = stop_at, stop

    def popleft(self) -> Any:
        self._left -= 1
        if self._left == 0:
            self._stop()
        return super().popleft()


@dataclass
class Paused:
    """One reconcile of a leader, in a thread, which stands still at one point until it is woken."""

    url: str
    point: int
    asking: bool
    """The points are its questions whether it leads, each just answered with yes; else the loop's callbacks."""
    reached: threading.Event = field(default_factory=threading.Event)
    woken: threading.Event = field(default_factory=threading.Event)
    stood: bool = False
    leads: bool = True
    questions: int = 0

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._main, daemon=True)
        thread.start()
        return thread

    def _stand(self) -> None:
        self.stood = True
        self.reached.set()
        self.woken.wait(30)

    def _may_write(self) -> bool:
        found = self.leads
        self.questions += 1
        if self.asking and self.questions == self.point:
            self._stand()
        return found

    def _main(self) -> None:
        loop = asyncio.SelectorEventLoop()
        if not self.asking:
            loop._ready = _Counted(self.point, self._stand)  # type: ignore[attr-defined]
        try:
            loop.run_until_complete(reconcile(self.url, "old", self._may_write, term=0))
        finally:
            loop.close()
            self.reached.set()


async def reconcile(url: str, who: str, may_write: Callable[[], bool], term: int, rounds: int = 1) -> None:
    """As many as it takes, at most so many; what is refused is tried again by whoever leads."""
    headers = {"Authorization": f"Bearer {who}"}
    connector = Fence(may_write)
    async with aiohttp.ClientSession(connector=connector, request_class=fenced(may_write)) as session:
        api = Api(session, url, credentials=lambda refused=False: headers)
        reconciler = Reconciler(api, SETTINGS, term=term)
        for _ in range(rounds):
            try:
                if not (await reconciler.reconcile(KEY)).writes:
                    return
            except ApiError:
                continue


async def before(spec: Spec | None) -> ApiServer:
    """What the server has when the leader begins; each attempt begins with a copy of it."""
    async with ApiServer() as server:
        server.put(body(SMALLEST))
        if spec is not None:
            await reconcile(server.url, "setup", lambda: True, 0, SETTLED_RECONCILES)
            server.play()
            await reconcile(server.url, "setup", lambda: True, 0, SETTLED_RECONCILES)
            server.put({**server.one("DynamoPipeline", "llama"), "spec": spec})
    return server


async def attempt(point: int, asking: bool, begun: ApiServer) -> tuple[bool, list[str]]:
    """Whether the leader stood still; what it has written after its successor's last write."""
    async with ApiServer() as server:
        server.take_over(begun)
        old = Paused(server.url, point, asking)
        thread = old.start()
        await asyncio.to_thread(old.reached.wait, 30)
        await asyncio.sleep(DRAIN_SECONDS)  # what the kernel had before the pause
        await reconcile(server.url, "new", lambda: True, 1, SETTLED_RECONCILES)
        written = len(server.authors)
        old.leads = False
        old.woken.set()
        await asyncio.to_thread(thread.join, 30)
        late = [f"{who} {what}" for who, what in zip(server.authors, server.writes, strict=True)][written:]
        assert not thread.is_alive()
        return old.stood, [one for one in late if one.startswith("old")]


EVERY_POINT = pytest.mark.parametrize(
    ("asking", "fewest"), [(False, 100), (True, 8)], ids=["anywhere", "just-after-it-has-asked"]
)
SPECS = pytest.mark.parametrize("spec", [None, EDITED], ids=["creation", "edit"])
FEW = 4
"""Of so many points of a loop one is tried here; each of its questions is, and `make e2e` has all points."""


@EVERY_POINT
@SPECS
@pytest.mark.timeout(400)
def test_a_leader_that_was_paused_writes_nothing(spec: Spec | None, asking: bool, fewest: int) -> None:
    """At points all over a creation and an edit: its own question keeps it from writing, and where the pause comes
    between answer and kernel, the server does."""
    assert asyncio.run(passed(spec, asking, step=1 if asking else FEW)) > fewest, "it stood still on its way"


async def passed(spec: Spec | None, asking: bool, step: int) -> int:
    """Pause a leader at every so many points; return the first that a reconcile doesn't reach."""
    begun = await before(spec)
    for point in range(1, POINTS, step):
        stood, late = await attempt(point, asking, begun)
        # An Event is about nothing that could have a version: only the chart's admission policy keeps one back.
        assert [one for one in late if not (asking and "/events" in one)] == [], f"paused at point {point}"
        if not stood:
            return point
    raise AssertionError("a reconcile never ends")
