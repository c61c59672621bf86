"""Keeps the mirror true: one LIST and then a watch for each kind of child, `Mirroring(api, mirror, mark).run()`.

Not kopf's watches: with those, five thousand objects cost 3 s of CPU and 118 MB (a task and a
queue for each), here 0.6 s and little more than their text; and after a lost history kopf
delivers no DELETED. Each kind is listed anew once in a resync all the same: an event that a
watch has left out would else stay unknown for ever. A watch that can't be had is tried again for ever,
later each time; until then its kind isn't live, and looks ask the server. Nothing else stops
for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dynamo.operator.answers import ApiError
from dynamo.operator.dirty import Key
from dynamo.operator.intervals import Intervals
from dynamo.operator.kinds import CHILDREN, PODS, Resource
from dynamo.operator.kube import Api
from dynamo.operator.mirror import Mirror
from dynamo.operator.resources import naming

log = logging.getLogger(__name__)

SETTLE_SECONDS = 20.0
"""How long the first looks wait for the first lists; where one can't be had, its kind is asked for."""
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0
BEHIND_SECONDS = 5.0
"""A watch that by then hasn't told what a LIST had stands still, and is begun anew."""
REST_SECONDS = 0.2
"""Between the end of a watch and the next."""
LISTS_AT_ONCE = 1
"""Pages of several kinds at the same time would all be in memory together."""


@dataclass
class _Running:
    """A watch, and what it is waited for to tell."""

    deadline: asyncio.Timeout
    told: int
    """The version that it has come to; events come in their order."""
    awaited: int = 0

    def heard(self, version: int) -> None:
        """An event, or a bookmark."""
        self.told = max(self.told, version)
        if self.told >= self.awaited and not self.deadline.expired():
            self.deadline.reschedule(None)


class Mirroring:
    """The tasks of all watches; `mark` is called for every pipeline of which something is news."""

    def __init__(
        self,
        api: Api,
        mirror: Mirror,
        mark: Callable[[Key], None],
        namespaces: tuple[str, ...] = (),
        kinds: Iterable[Resource] = (*CHILDREN, PODS),
        clock: Callable[[], float] = time.monotonic,
        again: float = Intervals.resync,
    ) -> None:
        self._api, self._mirror, self._mark, self._clock = api, mirror, mark, clock
        self._again = again
        self._scopes = [(kind, where) for kind in kinds for where in namespaces or (None,)]
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)
        self._tried: set[tuple[Resource, str | None]] = set()
        self._settled = asyncio.Event()
        self._heard = dict.fromkeys(self._scopes, clock())
        self._running: dict[tuple[Resource, str | None], _Running] = {}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind, where in self._scopes:
                group.create_task(self._follow(kind, where), name=f"watch {kind.plural} in {where or 'all'}")

    async def settled(self) -> None:
        """Returns when every kind has been listed or refused once, or when that takes too long."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            log.warning("after %.0f s not every kind has been listed; looking at pipelines anyway", SETTLE_SECONDS)

    def missed(self, kind: Resource, namespace: str, version: int) -> None:
        """A LIST had an object of this version: soon the watch must have told of it, or it is begun anew."""
        for where in (None, namespace):
            if (running := self._running.get((kind, where))) is not None and running.told < version:
                running.awaited = max(running.awaited, version)
                if running.deadline.when() is None:
                    running.deadline.reschedule(asyncio.get_running_loop().time() + BEHIND_SECONDS)

    def silent(self) -> float:
        """Seconds since the quietest watch was heard of: an event, a bookmark, an end, a refusal."""
        return self._clock() - min(self._heard.values(), default=self._clock())

    async def _follow(self, kind: Resource, where: str | None) -> None:
        """One kind in one place, for ever."""
        failures = 0
        while True:
            try:
                while True:
                    version = await self._list(kind, where)
                    failures = 0
                    await self._watched(kind, where, version)
            except ApiError as error:
                # 410: the history that we would go on from is gone. That is everyday, and a new LIST tells all.
                if error.code != 410:
                    failures += 1
                    log.log(_level(failures), "%s can't be watched: %s; trying again", kind.plural, error)
            except Exception:  # a defect with one kind must not end the others
                failures += 1
                log.exception("watching %s failed; trying again", kind.plural)
            finally:
                self._mirror.live(kind, where, False)
                self._has_tried(kind, where)
                self._hear(kind, where)
            await asyncio.sleep(_pause(failures))

    async def _list(self, kind: Resource, where: str | None) -> str:
        """Takes everything in, page by page; the version to watch from."""
        names: list[tuple[str, str]] = []
        async with self._lists:
            async for page in self._api.pages(kind, where, naming.PIPELINE):
                for item in page["items"]:
                    names.append((item["metadata"]["namespace"], item["metadata"]["name"]))
                    self._tell(self._mirror.take(kind, item))
                version: str = page["metadata"]["resourceVersion"]
                self._hear(kind, where)
        self._tell(self._mirror.listed(kind, where, names, version))
        self._mirror.live(kind, where, True)
        self._has_tried(kind, where)
        return version

    async def _watched(self, kind: Resource, where: str | None, version: str) -> None:
        """Until it is time for another LIST, or the watch is found to stand still; raises `ApiError`."""
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                self._running[kind, where] = _Running(deadline, int(version))
                await self._watch(kind, where, version)
        except TimeoutError:
            log.warning("the watch of %s in %s stood still; beginning anew", kind.plural, where or "all")
        finally:
            self._running.pop((kind, where), None)

    async def _watch(self, kind: Resource, where: str | None, version: str) -> None:
        """Until it is time for another LIST; raises `ApiError`.

        The server ends a watch every few minutes, and the next goes on from there.
        """
        end = self._clock() + _jittered(self._again)
        while (left := end - self._clock()) > 0:
            async for event in self._api.watch(kind, where, naming.PIPELINE, version, left):
                self._hear(kind, where)
                version = event["object"]["metadata"]["resourceVersion"]
                self._running[kind, where].heard(int(version))
                if event["type"] == "DELETED":
                    self._tell(self._mirror.drop(kind, event["object"]))
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._tell(self._mirror.take(kind, event["object"]))
            self._hear(kind, where)
            await asyncio.sleep(REST_SECONDS)

    def _tell(self, news: Iterable[Key]) -> None:
        for key in news:
            self._mark(key)

    def _hear(self, kind: Resource, where: str | None) -> None:
        self._heard[kind, where] = self._clock()

    def _has_tried(self, kind: Resource, where: str | None) -> None:
        self._tried.add((kind, where))
        if len(self._tried) == len(self._scopes):
            self._settled.set()


def _pause(failures: int) -> float:
    """Seconds; a little chance keeps the kinds from coming back all at the same time."""
    longest = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 10))
    return longest * (0.5 + 0.5 * random.random())


def _jittered(seconds: float) -> float:
    """Up to a tenth less, so that the kinds are not listed anew all at the same time."""
    return seconds * (1.0 - 0.1 * random.random())


def _level(failures: int) -> int:
    """Said aloud when it begins and now and then after that."""
    return logging.WARNING if failures in (1, 5) or failures % 60 == 0 else logging.DEBUG
