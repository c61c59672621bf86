"""Keeps the store up to date: one LIST and then a watch for each kind of child, `Informer(api, store, mark).run()`.

Not kopf's watches: with those, five thousand objects cost 3 s of CPU and 118 MB (a task and a
queue for each), here 0.6 s and little more than their text; and after a lost history kopf
delivers no DELETED. Each kind is listed again once in a resync all the same: an event that a
watch has left out would else stay unknown for ever. A watch that can't be had is tried again for ever,
later each time; until then its kind isn't live, and reconciles ask the server. Nothing else stops
for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.intervals import Intervals
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import CHILDREN, PODS, Key, Resource
from dynamo.operator.manifests import naming
from dynamo.operator.workqueue import Backoff

log = logging.getLogger(__name__)

SETTLE_SECONDS = 20.0
"""How long the first reconciles wait for the first lists; where a list can't be had, they ask the server."""
BACKOFF = Backoff(first_retry=1.0, last_retry=60.0)
"""After a LIST or a watch that failed; chance keeps the kinds from coming back all at the same time."""
BEHIND_SECONDS = 5.0
"""A watch that hasn't delivered by then what a LIST had has stalled, and is restarted."""
REST_SECONDS = 0.2
"""Between the end of a watch and the next."""
LISTS_AT_ONCE = 1
"""Pages of several kinds at the same time would all be in memory together."""


@dataclass
class _RunningWatch:
    """A watch, and the version that it is expected to reach."""

    deadline: asyncio.Timeout
    reached: int
    """The version that it has come to; events come in their order."""
    awaited: int = 0

    def advance(self, version: int) -> None:
        """Note the version of an event or a bookmark."""
        self.reached = max(self.reached, version)
        if self.reached >= self.awaited and not self.deadline.expired():
            self.deadline.reschedule(None)


class Informer:
    """Runs the tasks of all watches; `mark` is called for every pipeline with news."""

    def __init__(
        self,
        api: Api,
        store: ObjectStore,
        mark: Callable[[Key], None],
        namespaces: tuple[str, ...] = (),
        kinds: Iterable[Resource] = (*CHILDREN, PODS),
        clock: Callable[[], float] = time.monotonic,
        resync: float = Intervals.resync,
    ) -> None:
        self._api, self._store, self._mark, self._clock = api, store, mark, clock
        self._resync = resync
        self._scopes = [(kind, where) for kind in kinds for where in namespaces or (None,)]
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)
        self._tried: set[tuple[Resource, str | None]] = set()
        self._settled = asyncio.Event()
        self._last_activity = dict.fromkeys(self._scopes, clock())
        self._running: dict[tuple[Resource, str | None], _RunningWatch] = {}

    async def run(self) -> None:
        """Run all watches until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, where in self._scopes:
                group.create_task(self._follow(kind, where), name=f"watch {kind.plural} in {where or 'all'}")

    async def settled(self) -> None:
        """Wait until every kind has been listed or refused once, or until that takes too long."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            log.warning("not every kind was listed within %.0f s; reconciling pipelines anyway", SETTLE_SECONDS)

    def expect_version(self, kind: Resource, namespace: str, version: int) -> None:
        """Restart the watch of a kind unless it soon delivers this version, which a LIST had."""
        for where in (None, namespace):
            if (running := self._running.get((kind, where))) is not None and running.reached < version:
                running.awaited = max(running.awaited, version)
                if running.deadline.when() is None:
                    running.deadline.reschedule(asyncio.get_running_loop().time() + BEHIND_SECONDS)

    def silent(self) -> float:
        """Return the seconds since the quietest watch's last sign of life: an event, a bookmark, an end, a refusal."""
        return self._clock() - min(self._last_activity.values(), default=self._clock())

    async def _follow(self, kind: Resource, where: str | None) -> None:
        """Follow one kind in one namespace, for ever."""
        failures = 0
        while True:
            try:
                while True:
                    version = await self._list(kind, where)
                    failures = 0
                    await self._watched(kind, where, version)
            except ApiError as error:
                # 410: the history that we would go on from is gone. That is everyday, and a new LIST has all.
                if error.code != 410:
                    failures += 1
                    log.log(_level(failures), "could not watch %s: %s; trying again", kind.plural, error)
            except Exception:  # a defect with one kind must not end the others
                failures += 1
                log.exception("watching %s failed; trying again", kind.plural)
            finally:
                self._store.live(kind, where, False)
                self._has_tried(kind, where)
                self._note_activity(kind, where)
            await asyncio.sleep(BACKOFF.delay(failures + 1, random.random()))

    async def _list(self, kind: Resource, where: str | None) -> str:
        """Store everything, page by page; return the version to watch from."""
        names: list[tuple[str, str]] = []
        async with self._lists:
            async for page in self._api.pages(kind, where, naming.PIPELINE):
                for item in page["items"]:
                    names.append((item["metadata"]["namespace"], item["metadata"]["name"]))
                    self._mark_all(self._store.take(kind, item))
                version: str = page["metadata"]["resourceVersion"]
                self._note_activity(kind, where)
        self._mark_all(self._store.listed(kind, where, names, version))
        self._store.live(kind, where, True)
        self._has_tried(kind, where)
        return version

    async def _watched(self, kind: Resource, where: str | None, version: str) -> None:
        """Watch until it is time for another LIST, or until the watch has stalled; raises `ApiError`."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._running[kind, where] = _RunningWatch(deadline, int(version))
                await self._watch(kind, where, version)
        except TimeoutError:
            log.warning("the watch of %s in %s has stalled; restarting it", kind.plural, where or "all")
        finally:
            self._running.pop((kind, where), None)

    async def _watch(self, kind: Resource, where: str | None, version: str) -> None:
        """Watch until it is time for another LIST; raises `ApiError`.

        The server ends a watch every few minutes, and the next goes on from there.
        """
        end = self._clock() + _jittered(self._resync)
        while (left := end - self._clock()) > 0:
            async for event in self._api.watch(kind, where, selector=naming.PIPELINE, version=version, seconds=left):
                self._note_activity(kind, where)
                version = event["object"]["metadata"]["resourceVersion"]
                self._running[kind, where].advance(int(version))
                if event["type"] == "DELETED":
                    self._mark_all(self._store.drop(kind, event["object"]))
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._mark_all(self._store.take(kind, event["object"]))
            self._note_activity(kind, where)
            await asyncio.sleep(REST_SECONDS)

    def _mark_all(self, news: Iterable[Key]) -> None:
        for key in news:
            self._mark(key)

    def _note_activity(self, kind: Resource, where: str | None) -> None:
        self._last_activity[kind, where] = self._clock()

    def _has_tried(self, kind: Resource, where: str | None) -> None:
        self._tried.add((kind, where))
        if len(self._tried) == len(self._scopes):
            self._settled.set()


def _jittered(seconds: float) -> float:
    """Return up to a tenth less, so that the kinds are not listed again all at the same time."""
    return seconds * (1.0 - 0.1 * random.random())


def _level(failures: int) -> int:
    """Return the log level of a failure: a warning for the first one, and now and then after that."""
    return logging.WARNING if failures in (1, 5) or failures % 60 == 0 else logging.DEBUG
