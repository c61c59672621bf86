"""Asks frontends whom they can reach, again and again: `FrontendPoller(store, mark).run()`, `reachability.py`'s shell.

A reconcile says which pipelines are there (`expect`) and reads the result (`lost`); where
that changed, the pipeline is marked. Now and then workers are asked, too, what they
remark of themselves (`remarks`, `worker_remarks.py`). One GET of a few kilobytes a pipeline and
round; with many pipelines the rounds take longer. A pipeline whose frontends don't answer
(another network, TLS of their own) is asked less and less often, and stands then as its pods'
readiness says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.observe import is_ready, label
from dynamo.operator.kube.resources import PODS, Key
from dynamo.operator.manifests import naming
from dynamo.operator.plan.plan import SYSTEM_PORT
from dynamo.operator.reconcile.reachability import HealthReport, Reachability
from dynamo.operator.reconcile.worker_remarks import EVERY_SECONDS, WorkerHealth, pods_to_ask, remark_of

T = TypeVar("T")

ROUND_SECONDS: Final = 0.7
"""Between two questions to the same pipeline. Two answers that agree count, and Ready may stand for 2 s at most."""
MOST_A_SECOND: Final = 400
ANSWER_SECONDS: Final = 1.0
PAUSES: Final = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds after so many silences in a row."""
ANSWER_BYTES: Final = 1 << 20
"""Some four thousand instances. A longer report isn't read: it may be anybody's, and many answer at once."""
WORKER_BYTES: Final = 16 << 10
AT_ONCE: Final = 64

log = logging.getLogger(__name__)


@dataclass
class _Poll:
    """A pipeline whose frontends are polled."""

    port: int
    reachability: Reachability = field(default_factory=Reachability)
    failures: int = 0
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None
    remarking: frozenset[str] = frozenset()
    """Components whose ready workers are asked, too."""
    remarks: dict[str, str] = field(default_factory=dict)
    remarks_due: float = 0.0
    turn: int = 0


class FrontendPoller:
    """Owns its session and its questions; `mark` is called where another answer came than before."""

    def __init__(
        self,
        store: ObjectStore,
        mark: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
        every: float = ROUND_SECONDS,
    ) -> None:
        self._store, self._mark, self._clock, self._every = store, mark, clock, every
        self._polls: dict[Key, _Poll] = {}

    def expect(self, key: Key, port: int, remarking: frozenset[str] = frozenset()) -> None:
        """Poll a pipeline's frontends on this port from now on, and the workers of the components `remarking`."""
        poll = self._polls.setdefault(key, _Poll(port))
        poll.remarking = remarking
        if poll.port != port:
            poll.port, poll.failures, poll.not_before = port, 0, 0.0

    def gone(self, key: Key) -> None:
        """Forget a pipeline."""
        poll = self._polls.pop(key, None)
        if poll is not None and poll.task is not None:
            poll.task.cancel()

    def lost(self, key: Key) -> frozenset[str]:
        """Return the ready pods that the frontends can't reach, as far as they have reported it."""
        poll = self._polls.get(key)
        return poll.reachability.lost if poll is not None else frozenset()

    def remarks(self, key: Key) -> Mapping[str, str]:
        """Return what pods remark of themselves, by name."""
        poll = self._polls.get(key)
        return poll.remarks if poll is not None else {}

    async def run(self) -> None:
        """Poll until cancelled."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=2 * self._every)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        # Whoever answers may mean harm: nothing of theirs is kept, or unpacked.
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            cookie_jar=jar,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        ) as session:
            try:
                while True:
                    await self._round(session)
            finally:
                tasks = [poll.task for poll in self._polls.values() if poll.task is not None]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _round(self, session: aiohttp.ClientSession) -> None:
        """Poll every pipeline once, one after the other."""
        keys = list(self._polls)
        pause = max(self._every, len(keys) / MOST_A_SECOND) / max(len(keys), 1)
        for key in keys:
            poll = self._polls.get(key)
            if poll is not None and (poll.task is None or poll.task.done()) and poll.not_before <= self._clock():
                poll.task = asyncio.create_task(
                    self._poll_frontends(session, key, poll), name=f"ask the frontends of {key}"
                )
            await asyncio.sleep(pause)
        if not keys:
            await asyncio.sleep(pause)

    async def _poll_frontends(self, session: aiohttp.ClientSession, key: Key, poll: _Poll) -> None:
        try:
            pods = self._store.of(PODS, key) or []
            # Seen before anybody is asked: who was ready by then, the frontends must know.
            ready = {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod) and not _is_frontend(pod)}
            addresses = [] if not ready else list(_addresses(pods))
            questions = [_health_report(session, address, poll.port) for address in addresses]
            results, has_news = await asyncio.gather(asyncio.gather(*questions), self._ask_workers(session, poll, pods))
            reports = [report for report in results if report is not None]
            silent = bool(addresses) and not reports
            poll.failures = poll.failures + 1 if silent else 0
            poll.not_before = self._clock() + PAUSES[min(poll.failures, len(PAUSES)) - 1] if silent else 0.0
            if poll.reachability.update(ready, reports) or has_news:
                self._mark(key)
        except Exception:  # a defect with one pipeline must not end the others
            log.exception("%s: could not poll its frontends", key)

    async def _ask_workers(
        self, session: aiohttp.ClientSession, poll: _Poll, pods: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Ask workers what they remark of themselves, where it is time; True where an answer is news."""
        if self._clock() < poll.remarks_due:
            return False
        poll.remarks_due, poll.turn = self._clock() + EVERY_SECONDS, poll.turn + 1
        asked = pods_to_ask(pods, poll.remarking, poll.turn)
        answers = await asyncio.gather(*(_worker_health(session, address) for _, address in asked))
        there = {str(pod["metadata"]["name"]) for pod in pods}
        before, known = poll.remarks, {name: text for name, text in poll.remarks.items() if name in there}
        for (name, _), health in zip(asked, answers, strict=True):
            known[name] = "" if health is None else remark_of(health)
        poll.remarks = {name: text for name, text in known.items() if text}
        return poll.remarks != before


def _is_frontend(pod: Mapping[str, Any]) -> bool:
    return label(pod, naming.COMPONENT) == naming.FRONTEND


def _addresses(pods: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the addresses of the frontends that are ready."""
    for pod in pods:
        if _is_frontend(pod) and is_ready(pod) and (address := pod.get("status", {}).get("podIP")):
            yield str(address)


async def _health_report(session: aiohttp.ClientSession, address: str, port: int) -> HealthReport | None:
    """Return a frontend's report; None without a usable one, as from a frontend that leaves."""
    return await _health(session, address, port, HealthReport, ANSWER_BYTES, (200,))


async def _worker_health(session: aiohttp.ClientSession, address: str) -> WorkerHealth | None:
    """Return a worker's answer, which may be that it isn't ready."""
    return await _health(session, address, SYSTEM_PORT, WorkerHealth, WORKER_BYTES, (200, 503))


async def _health(
    session: aiohttp.ClientSession, address: str, port: int, kind: type[T], most: int, statuses: Collection[int]
) -> T | None:
    """Return what `/health` of a pod says; None where it is nothing that can be used."""
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{port}/health", allow_redirects=False) as response:
            if response.status not in statuses:
                return None
            text = await response.content.read(most)
            while more := await response.content.read(most):
                text += more
                if len(text) > most:
                    return None
            return msgspec.json.decode(text, type=kind)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
