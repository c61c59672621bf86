"""Whether the engine still answers: by what it says of itself and, where that is nothing, by asking it.

As the canary of NVIDIA Dynamo: after `DYN_CANARY_WAIT_TIME` seconds without output the engine gets a small request, and
has `DYN_HEALTH_CHECK_REQUEST_TIMEOUT` seconds for its first item. `Canary` decides, without I/O or clock; `EngineWatch`
asks. An engine that doesn't answer takes its instance out of routing and is shown `notready`, since Ready means
routable: what is sent to it would only wait. Whatever it says afterwards brings it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from dynamo.llm import ModelCard
from dynamo.llm.model_card import EMBEDDING
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.endpoint import Served
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import Abort
from dynamo.worker.engines import PYTHON
from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
MARK: Final = "_HEALTH_CHECK"
"""In the payload of such a request, for engines that want to know."""
_SLOWEST_TICK: Final = 1.0
_OWNER: Final = "canary"
"""Who has the endpoint leave."""


class Canary:
    """Decide when a silent engine gets a health check. Pure: `tick` says when to send it."""

    def __init__(self, wait: float, timeout: float, now: float) -> None:
        """Seconds without output until the engine is asked, and that its answer may take."""
        self._wait, self._timeout = wait, timeout
        self._heard = now
        self._asked: float | None = None
        self.failure = ""
        """Why it counts as broken; empty while it doesn't."""

    @property
    def asking(self) -> bool:
        """An answer is waited for."""
        return self._asked is not None

    def spoke(self, now: float) -> None:
        """It made output, of whatever request."""
        self._heard, self._asked, self.failure = now, None, ""

    def failed(self, why: str, now: float) -> None:
        """Its answer is an error."""
        self._heard, self._asked, self.failure = now, None, why

    def postpone(self, seconds: float) -> None:
        """Our own side was held up: time in which nothing could be heard doesn't count."""
        self._heard += seconds
        if self._asked is not None:
            self._asked += seconds

    def tick(self, now: float) -> bool:
        """Act on what did not come; True: ask now."""
        if self._asked is not None:
            if now - self._asked >= self._timeout:
                self.failed(f"the engine did not answer a health check within {self._timeout:g} s", now)
            return False
        if now - self._heard < self._wait:
            return False
        self._asked = now
        return True


class Speaker(Protocol):
    """A running request's sink, which notes output once after each `listen`."""

    def listen(self) -> None: ...


class EngineWatch:
    """A canary and what it needs: an engine to ask, a place in routing to leave and take again."""

    def __init__(
        self, canary: Canary, ask: Callable[[Any], Abort], *, tick: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` submits the health check with the sink that it is given."""
        self._canary, self._ask, self._tick, self._clock = canary, ask, tick, clock
        self.speakers: set[Speaker] = set()
        """The sinks of running requests."""
        self._question: _Question | None = None
        self._left = False
        self._task: asyncio.Task[None] | None = None

    def spoke(self) -> None:
        """The engine made output."""
        self._canary.spoke(self._clock())

    def start(self, served: Served) -> None:
        """Watch from now on."""
        self.spoke()
        self._task = asyncio.get_running_loop().create_task(self._run(served), name="watch the engine")

    async def stop(self) -> None:
        """Ask no more; routing stays as it is."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._drop()

    async def _run(self, served: Served) -> None:
        while True:
            due = self._clock() + self._tick
            await asyncio.sleep(self._tick)
            late = self._clock() - due
            if late > self._tick:
                self._canary.postpone(late)
            self._look()
            await self._route(served)

    def _look(self) -> None:
        for speaker in self.speakers:
            speaker.listen()
        ask = self._canary.tick(self._clock())
        if ask or not self._canary.asking:
            self._drop()
        if not ask:
            return
        question = self._question = _Question(self._answered)
        try:
            question.abort = self._ask(question)
        except Exception as error:  # whatever an engine raises is its answer
            question.fail(error)

    def _answered(self, error: Exception | None) -> None:
        if error is None:
            self.spoke()
        else:
            self._canary.failed(f"the engine failed at a health check: {error or type(error).__name__}", self._clock())
        if self._question is not None:  # its abort is known once `submit` has returned
            asyncio.get_running_loop().call_soon(self._question.end)

    def _drop(self) -> None:
        """Let the engine forget what it was asked."""
        question, self._question = self._question, None
        if question is not None:
            question.end()

    async def _route(self, served: Served) -> None:
        broken = bool(self._canary.failure)
        if broken == self._left:
            return
        self._left = broken
        if broken:
            log.warning("%s; it gets no requests until it answers", self._canary.failure)
            await served.leave(self._canary.failure, by=_OWNER)
        else:
            log.warning("the engine answers again")
            await served.rejoin(by=_OWNER)


class _Question:
    """The sink of a health check: the first word counts."""

    def __init__(self, answered: Callable[[Exception | None], None]) -> None:
        self._answered: Callable[[Exception | None], None] | None = answered
        self.abort: Abort = lambda: None

    def _say(self, error: Exception | None) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(error)

    def end(self) -> None:
        """Nothing more is wanted."""
        self._answered = None
        self.abort()

    def push(self, produced: Any, extras: Any = None) -> None:
        """Tokens, text, or a vector."""
        self._say(None)

    def finish(self, reason: str = "", extras: dict[str, Any] | None = None) -> None:
        self._say(None)

    def fail(self, error: Exception) -> None:
        self._say(error)


Asked = PreprocessedRequest | TextRequest | EmbeddingRequest


def health_check(card: ModelCard, settings: WorkerSettings) -> Asked | None:
    """The request to ask with: as the settings say, else one token of one token, in the engine's kind.

    None for prefill engines, which keep what they compute until somebody takes it, unless the settings say what to
    ask. Raises `InvalidArgument` naming the setting.
    """
    given = settings.payload()
    if not given and card.role == "prefill":
        return None
    text = card.model_input == "text"
    plain: dict[str, Any] = {"model": card.name, MARK: True}
    first = card.bos_token_id if card.bos_token_id is not None else 1
    if text and settings.engine == PYTHON:  # such files are written for chats
        body = {"model": card.name, "messages": [{"role": "user", "content": "1"}], "max_tokens": 1, MARK: True}
        plain |= {"kind": "chat", "body": body}
    elif text:
        plain |= {"kind": "completions", "body": {"model": card.name, "prompt": "1", "max_tokens": 1}}
    elif card.same_types([EMBEDDING]):
        plain |= {"token_ids": [[first]]}
    else:
        plain |= {"token_ids": [first], "stop_conditions": {"max_tokens": 1, "ignore_eos": True}}
    try:
        vectors = card.same_types([EMBEDDING])
        kind: type[Asked] = TextRequest if text else EmbeddingRequest if vectors else PreprocessedRequest
        return msgspec.convert(plain | given, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"--health-check-payload (DYN_HEALTH_CHECK_PAYLOAD) is no request: {error}") from error


def watch_engine(submit: Callable[[Any, Any], Abort], card: ModelCard, settings: WorkerSettings) -> EngineWatch | None:
    """What watches an engine as the settings say; None where they don't want it, or there is nothing to ask."""
    if not settings.health_check_enabled:
        return None
    asked = health_check(card, settings)
    if asked is None:
        return None
    wait = settings.canary_wait_time_secs
    canary = Canary(wait, settings.health_check_request_timeout_secs, time.monotonic())
    return EngineWatch(canary, lambda sink: submit(asked, sink), tick=min(wait / 4, _SLOWEST_TICK))
