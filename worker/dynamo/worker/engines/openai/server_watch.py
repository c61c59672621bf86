"""A server, watched: its health route, its list of models and its metrics, each with a bound of bytes and time.

The server's answer decides whether the worker stays in routing. `Availability` has the rules; this is the thin shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import aiohttp
import msgspec

from dynamo.worker.engine import EngineLoad
from dynamo.worker.engines.openai.arguments import Upstream
from dynamo.worker.engines.openai.availability import Availability
from dynamo.worker.engines.openai.dialects import Call
from dynamo.worker.engines.openai.discovery import ServerFacts, listing
from dynamo.worker.engines.openai.server_metrics import MOST_BYTES, ServerLoad, load_of

if TYPE_CHECKING:
    from collections.abc import Sized

log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 5.0
_ANSWER_SECONDS: Final = 10.0
_SOON: Final = 0.2
_COSTLY: Final = 5.0
"""Seconds between looks where each costs the server something: SGLang's health route makes a token."""
_STALE: Final = 3
"""Intervals after which what metrics told counts no more."""
_MISSING: Final = frozenset({401, 403, 404, 405, 501})
"""Answers of a server that has no health route, or none for us."""


class ServerWatch:
    """Look at a server until `stop`; `on_change` is told the reason to stay away, empty at its end."""

    def __init__(
        self, session: aiohttp.ClientSession, server: Upstream, facts: ServerFacts, *, context: int | None,
        opened: Sized, question: Call,
    ) -> None:  # fmt: skip
        """Take what routing was told of, the requests that are open here, and one that a server which works answers."""
        self._session, self._server, self._facts, self._context = session, server, facts, context
        self._opened, self._question = opened, question
        self.availability = Availability()
        self.chunks = 0
        """Pieces of answers that came: a server that is slow to say how it is, and sends them, is well."""
        self.on_change: Callable[[str], None] = lambda why: None
        self._on_adapters: Callable[[Sequence[str]], None] = lambda names: None
        self._adapters = facts.adapters
        self._told_adapters: tuple[str, ...] = ()
        self._route = "/health"
        self._interval = max(server.check_secs, _COSTLY) if facts.api == "sglang" else server.check_secs
        self._models_due = 0.0
        self._said = ""
        self._load: ServerLoad | None = None
        self._others, self._load_until = 0, 0.0
        self._measures = True
        self._soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on; nothing where the user switched it off."""
        if self._server.check_secs > 0:
            self._models_due = time.monotonic() + self._server.models_secs
            self._task = asyncio.get_running_loop().create_task(self._run(), name="watch the server")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def failed(self) -> None:
        """Note that a request failed by the server's fault, and look at it soon."""
        self.availability.request_failed()
        self._soon.set()

    def on_adapters(self, tell: Callable[[Sequence[str]], None]) -> None:
        """Tell the adapters that can be asked now, and whenever they change; none while the server is away."""
        self._on_adapters = tell
        self._told_adapters = ()  # it looks since the start: what it noticed before, nobody heard
        self._tell_adapters()

    def load(self) -> EngineLoad:
        """Return our requests, and what the server's metrics add: what waits there, others' requests, its cache."""
        own = len(self._opened)
        if self._load is None or time.monotonic() > self._load_until:
            return EngineLoad(running=own)
        everything = own + self._others
        waiting = min(self._load.waiting, everything)
        blocks = round(self._load.kv_usage * (self._load.blocks or 0))
        return EngineLoad(
            running=everything - waiting, waiting=waiting, kv_usage=self._load.kv_usage, used_kv_blocks=blocks,
            preemptions=self._load.preemptions,
        )  # fmt: skip

    async def _run(self) -> None:
        while True:
            try:
                self.availability.looked(await self._look())
                if self.availability.suspicious:
                    self.availability.asked(await self._ask())
                self._tell()
                if self._measures and not self.availability.why:
                    await self.measure()
            except Exception as error:  # a watch that ends would leave a lost server in routing
                log.warning("looking at %s: %s %s", self._server.root, type(error).__name__, error)
            self._soon.clear()
            pause = _SOON if self.availability.doubtful else self._interval
            # Not by `wait_for`, which forgets that it was cancelled when the event comes at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()
            if self._soon.is_set():
                await asyncio.sleep(_SOON)  # many requests fail at once, and one look is enough

    async def _look(self) -> str:
        chunks = self.chunks
        status = await self._status(self._route)
        if status in _MISSING and self._route == "/health":
            self._route, self._interval = "/v1/models", max(self._interval, _COSTLY)
            status = await self._status(self._route)
        if status == 0 and self.chunks > chunks:
            return ""
        if status != 200:
            return f"answers {status} at {self._route}" if status else "does not answer"
        unsure = self.availability.why or self.availability.doubtful  # what was wrong last may be the model
        if unsure or time.monotonic() >= self._models_due:
            self._models_due = time.monotonic() + self._server.models_secs
            return await self._same()
        return ""

    async def _ask(self) -> str:
        """Return what is wrong with the answer to a request of ours; one that is refused for what it is shows life."""
        chunks = self.chunks
        try:
            timeout = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
            url, body = self._server.root + self._question.path, msgspec.json.encode(self._question.body)
            headers = {"Content-Type": "application/json"}
            async with self._session.post(
                url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status >= 500 or answer.status in (401, 403):
                    return f"it answers {answer.status}"
                first = await answer.content.readany()
                return "it answers an error" if first.startswith(b'data: {"error"') else ""
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return "" if self.chunks > chunks else f"it sends no answer ({type(error).__name__})"

    async def _same(self) -> str:
        """Return what is not as routing was told; empty where all is."""
        now = await listing(self._session, self._server, self._facts)
        context, self._adapters = now.context_length, now.adapters
        if not now.served:
            return f"no longer serves {self._facts.model!r}"
        if context is not None and self._context is not None and context < self._context:
            return f"has a context of {context} tokens now, and {self._context} were announced: restart this worker"
        return ""

    async def _status(self, route: str) -> int:
        try:
            timeout = aiohttp.ClientTimeout(total=_LOOK_SECONDS)
            async with self._session.get(self._server.root + route, timeout=timeout, allow_redirects=False) as response:
                if len(await response.content.read(MOST_BYTES)) >= MOST_BYTES:
                    response.close()
                return response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0

    async def measure(self) -> ServerLoad | None:
        """Read the server's metrics; a server without any isn't asked again."""
        before = len(self._opened)
        status, text = await metrics_text(self._session, self._server.root)
        if status in _MISSING or (status == 200 and text is None):
            self._measures = False
        load = load_of(text) if text is not None else None
        if load is not None:
            self._load, self._load_until = load, time.monotonic() + _STALE * self._interval
            mine = max(before, len(self._opened))
            self._others = max(load.running + load.waiting - mine, 0)
        return load

    def _tell(self) -> None:
        why = self.availability.why
        if why != self._said:
            self._said = why
            self.on_change(f"the server at {self._server.root} {why}" if why else "")
        self._tell_adapters()

    def _tell_adapters(self) -> None:
        names = () if self.availability.why else self._adapters
        if names != self._told_adapters:
            self._told_adapters = names
            self._on_adapters(names)


async def metrics_text(session: aiohttp.ClientSession, root: str) -> tuple[int, bytes | None]:
    """Return status and text of a server's metrics; None where there is none, or one that is too long."""
    try:
        timeout = aiohttp.ClientTimeout(total=_LOOK_SECONDS)
        async with session.get(f"{root}/metrics", timeout=timeout, allow_redirects=False) as response:
            if response.status != 200:
                return response.status, None
            parts, size = [], 0
            async for part in response.content.iter_any():
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    response.close()
                    log.warning("%s/metrics is longer than %d bytes: its load is not known", root, MOST_BYTES)
                    return 200, None
            return 200, b"".join(parts)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0, None
