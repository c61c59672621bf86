"""Asks frontends whom they can reach, again and again: `FrontendPoller(store, mark).run()`, `reachability.py`'s shell.

A reconcile says which pipelines are there (`expect`) and reads the result (`lost`); where
that changed, the pipeline is marked. One GET of a few kilobytes a pipeline and round; with many pipelines
the rounds take longer. A pipeline whose frontends don't answer (another network, TLS of their
own) is asked less and less often, and stands then as its pods' readiness says.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from dynamo.operator.cluster.object_store import ObjectStore
from dynamo.operator.cluster.observe import is_ready, label
from dynamo.operator.kube.resources import PODS, Key
from dynamo.operator.manifests import naming
from dynamo.operator.reconcile.reachability import HealthReport, Reachability

ROUND_SECONDS: Final = 0.7
"""Between two questions to the same pipeline. Two answers that agree count, and Ready may stand for 2 s at most."""
MOST_A_SECOND: Final = 400
ANSWER_SECONDS: Final = 1.0
PAUSES: Final = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds after so many silences in a row."""
ANSWER_BYTES: Final = 1 << 20
"""Some four thousand instances. A longer report isn't read: it may be anybody's, and many answer at once."""
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

    def expect(self, key: Key, port: int) -> None:
        """Poll a pipeline's frontends on this port from now on."""
        poll = self._polls.setdefault(key, _Poll(port))
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
            results = await asyncio.gather(*(_health_report(session, address, poll.port) for address in addresses))
            reports = [report for report in results if report is not None]
            silent = bool(addresses) and not reports
            poll.failures = poll.failures + 1 if silent else 0
            poll.not_before = self._clock() + PAUSES[min(poll.failures, len(PAUSES)) - 1] if silent else 0.0
            if poll.reachability.update(ready, reports):
                self._mark(key)
        except Exception:  # a defect with one pipeline must not end the others
            log.exception("%s: could not poll its frontends", key)


def _is_frontend(pod: Mapping[str, Any]) -> bool:
    return label(pod, naming.COMPONENT) == naming.FRONTEND


def _addresses(pods: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Yield the addresses of the frontends that are ready."""
    for pod in pods:
        if _is_frontend(pod) and is_ready(pod) and (address := pod.get("status", {}).get("podIP")):
            yield str(address)


async def _health_report(session: aiohttp.ClientSession, address: str, port: int) -> HealthReport | None:
    """Return a frontend's report; None without a usable one, as from a frontend that leaves."""
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{port}/health", allow_redirects=False) as response:
            if response.status != 200:
                return None
            text = await response.content.read(ANSWER_BYTES)
            while more := await response.content.read(ANSWER_BYTES):
                text += more
                if len(text) > ANSWER_BYTES:
                    return None
            return msgspec.json.decode(text, type=HealthReport)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
