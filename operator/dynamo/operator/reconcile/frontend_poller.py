"""Asks frontends whom they can reach, again and again: `Asking(mirror, mark).run()`. The shell of `reach.py`.

A look says which pipelines are there (`expects`) and reads what was found (`lost`); where
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

from dynamo.operator.dirty import Key
from dynamo.operator.kinds import PODS
from dynamo.operator.mirror import Mirror
from dynamo.operator.observe import is_ready, label
from dynamo.operator.reach import Answer, Reach
from dynamo.operator.resources import naming

ROUND_SECONDS: Final = 0.7
"""Between two questions to the same pipeline. Two answers that agree count, and Ready may stand for 2 s at most."""
MOST_A_SECOND: Final = 400
ANSWER_SECONDS: Final = 1.0
PAUSES: Final = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds after so many silences in a row."""
ANSWER_BYTES: Final = 1 << 20
"""Some four thousand instances. Whose frontend says more isn't read: it may be anybody's, and many answer at once."""
AT_ONCE: Final = 64

log = logging.getLogger(__name__)


@dataclass
class _Asked:
    """One pipeline."""

    port: int
    reach: Reach = field(default_factory=Reach)
    failures: int = 0
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None


class Asking:
    """Owns its session and its questions; `mark` is called where another answer came than before."""

    def __init__(
        self,
        mirror: Mirror,
        mark: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
        every: float = ROUND_SECONDS,
    ) -> None:
        self._mirror, self._mark, self._clock, self._every = mirror, mark, clock, every
        self._asked: dict[Key, _Asked] = {}

    def expects(self, key: Key, port: int) -> None:
        """A pipeline is there, and its frontends answer on this port."""
        known = self._asked.setdefault(key, _Asked(port))
        if known.port != port:
            known.port, known.failures, known.not_before = port, 0, 0.0

    def gone(self, key: Key) -> None:
        """A pipeline isn't there any more."""
        known = self._asked.pop(key, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    def lost(self, key: Key) -> frozenset[str]:
        """Its ready pods that the frontends can't reach, as far as they have said so."""
        known = self._asked.get(key)
        return known.reach.lost if known is not None else frozenset()

    async def run(self) -> None:
        """Until cancelled."""
        connector = aiohttp.TCPConnector(limit=AT_ONCE, keepalive_timeout=2 * self._every)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        # Whoever answers may mean harm: nothing of theirs is kept, or unpacked.
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=jar, auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        ) as session:  # fmt: skip
            try:
                while True:
                    await self._round(session)
            finally:
                tasks = [known.task for known in self._asked.values() if known.task is not None]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _round(self, session: aiohttp.ClientSession) -> None:
        """Everybody once, one after the other."""
        keys = list(self._asked)
        pause = max(self._every, len(keys) / MOST_A_SECOND) / max(len(keys), 1)
        for key in keys:
            known = self._asked.get(key)
            if known is not None and (known.task is None or known.task.done()) and known.not_before <= self._clock():
                known.task = asyncio.create_task(self._ask(session, key, known), name=f"ask the frontends of {key}")
            await asyncio.sleep(pause)
        if not keys:
            await asyncio.sleep(pause)

    async def _ask(self, session: aiohttp.ClientSession, key: Key, known: _Asked) -> None:
        try:
            pods = self._mirror.of(PODS, key) or []
            # Seen before anybody is asked: who was ready by then, the frontends must know.
            ready = {str(pod["metadata"]["name"]) for pod in pods if is_ready(pod) and not _is_frontend(pod)}
            addresses = [] if not ready else list(_addresses(pods))
            said = await asyncio.gather(*(_answer(session, address, known.port) for address in addresses))
            answers = [answer for answer in said if answer is not None]
            silent = bool(addresses) and not answers
            known.failures = known.failures + 1 if silent else 0
            known.not_before = self._clock() + PAUSES[min(known.failures, len(PAUSES)) - 1] if silent else 0.0
            if known.reach.answered(ready, answers):
                self._mark(key)
        except Exception:  # a defect with one pipeline must not end the others
            log.exception("%s: its frontends could not be asked", key)


def _is_frontend(pod: Mapping[str, Any]) -> bool:
    return label(pod, naming.COMPONENT) == naming.FRONTEND


def _addresses(pods: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Of the frontends that are ready."""
    for pod in pods:
        if _is_frontend(pod) and is_ready(pod) and (address := pod.get("status", {}).get("podIP")):
            yield str(address)


async def _answer(session: aiohttp.ClientSession, address: str, port: int) -> Answer | None:
    """What a frontend says; None where it says nothing that can be used, as one does that leaves."""
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
            return msgspec.json.decode(text, type=Answer)
    except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
        return None
