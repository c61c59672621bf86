"""One data-parallel rank of the mocker: sleeps each step's simulated time, and pushes what the step produced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dynamo.llm.protocols import CACHED_TOKENS, STOP, STOP_REASON
from dynamo.worker.engine import KvListener, Sink
from dynamo.worker.engines.mocker.arguments import MockArguments
from dynamo.worker.engines.mocker.scheduler import Sequence
from dynamo.worker.engines.mocker.stepper import Output, Step, Stepper, TextAnswer


@dataclass(slots=True, eq=False)
class MockRequest:
    """One request, from the shell's side."""

    sink: Sink
    answer: TextAnswer
    stops: dict[int, str]
    extras: dict[str, Any] = field(default_factory=dict)
    """What else the first token says."""
    silent: bool = True
    """No token has left yet."""
    room: int | None = None
    """Where a decode engine comes for its prompt."""
    sequence: Sequence[MockRequest] | None = None
    """None: its prompt is still on its way here."""


Over = Callable[["MockRank", Sequence[MockRequest]], dict[str, Any]]
"""What a prefill engine says of a prompt that it has computed, for the last delta."""


class MockRank:
    """A scheduler, its cache and what steps it: callbacks of the loop, since a task costs a third of a timer more."""

    def __init__(self, number: int, arguments: MockArguments, over: Over | None = None) -> None:
        self.number, self._over = number, over
        self._stepper: Stepper[MockRequest] = Stepper(arguments.limits, arguments.timing, holds=over is not None)
        self.scheduler = self._stepper.scheduler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next: asyncio.Handle | None = None
        """The end of the step that is under way, or the beginning of one; None: there is nothing to do."""
        self._due = 0.0
        self.coming = 0
        """Requests whose prompt is on its way here."""
        self.on_kv: KvListener | None = None
        self.over: asyncio.Future[None]
        """There once it was started, and done once it steps no more."""

    def start(self) -> None:
        """Step from now on, as long as there is something to do."""
        self._loop = asyncio.get_running_loop()
        self.over = self._loop.create_future()
        self._wake()

    def stop(self) -> None:
        """Step no more; fine where it was never started."""
        if self._loop is None:
            return
        if self._next is not None:
            self._next.cancel()
        self._loop = None
        self.over.cancel()

    @property
    def burden(self) -> tuple[int, int]:
        """Return how busy it is, to be compared."""
        requests, blocks = self.scheduler.burden
        return requests + self.coming, blocks

    def add(self, request: MockRequest, token_ids: list[int], media: list[list[int]] | None = None) -> None:
        """Queue a request; raises `ValueError` for what isn't a token id. `media`: hashes of the images per block."""
        request.sequence = self.scheduler.add(request, token_ids, media)
        self._wake()

    def arrived(
        self, request: MockRequest, names: list[int], tail: list[int], cached: int, media: tuple[int, ...] = ()
    ) -> None:
        """Queue a request whose prompt was computed elsewhere, and is here now; `cached` tokens were cached there."""
        sequence = request.sequence = self.scheduler.add_named(request, names, tail)
        sequence.arrived, sequence.cached_tokens, sequence.media = True, cached, media
        self._wake()

    def remove(self, request: MockRequest) -> None:
        """Take a request out, wherever it is."""
        if request.sequence is not None:
            self.scheduler.remove(request.sequence)
            request.sequence = None

    def release(self, sequence: Sequence[MockRequest]) -> None:
        """Let go of what was kept after its end."""
        self.scheduler.release(sequence)
        self._wake()  # somebody may have waited for the room

    def forget(self, error: Exception) -> None:
        """Fail all requests here with `error`, and forget all that is cached."""
        for request in self.scheduler.owners():
            self.remove(request)
            request.sink.fail(error)
        self.scheduler.pool.forget()
        self._tell()

    def _wake(self) -> None:
        """Begin a step in the loop's next turn, with all that comes in this one, unless one is under way."""
        if self._next is None and self._loop is not None:
            self._next = self._loop.call_soon(self._begin_anew)

    def _begin_anew(self) -> None:
        self._due = time.monotonic()
        self._turn(None)

    def _turn(self, step: Step[MockRequest] | None) -> None:
        """End a step and begin the next one; what goes wrong ends the rank."""
        try:
            if step is not None:
                self._produce(step)
                self._tell()
            self._begin()
        except Exception as error:
            if not self.over.done():
                self.over.set_exception(error)

    def _begin(self) -> None:
        """Begin a step, whose end comes when its time has passed; nothing to do: rest until something comes."""
        step = self._stepper.begin()
        if step is None or self._loop is None:
            self._next = None
            return
        now = time.monotonic()
        # A machine that can't keep up is slower than the simulated one; it does not catch up in bursts.
        self._due = max(self._due + step.seconds, now)
        wait = self._due - now
        self._next = self._loop.call_later(wait, self._turn, step) if wait else self._loop.call_soon(self._turn, step)

    def _produce(self, step: Step[MockRequest]) -> None:
        """Push one token of every sequence that is still there."""
        for output in self._stepper.end(step):
            self._push(output)

    def _tell(self) -> None:
        changes = self.scheduler.pool.take_changes()
        if changes is not None and self.on_kv is not None:
            self.on_kv(changes._replace(dp_rank=self.number) if self.number else changes)

    def _push(self, output: Output[MockRequest]) -> None:
        """Send one token on its way, and the end of the answer where it was the last."""
        request = output.sequence.owner
        if request.silent:
            request.silent = False
            request.sink.push([output.token], {CACHED_TOKENS: output.sequence.cached_tokens} | request.extras)
        else:
            request.sink.push([output.token])
        if output.over:
            self._finish(output)

    def _finish(self, output: Output[MockRequest]) -> None:
        request = output.sequence.owner
        reason, extras = request.answer.end, {} if self._over is None else self._over(self, output.sequence)
        if request.answer.stopped_by is not None:
            reason = request.stops[output.token]
            if reason == STOP:
                extras[STOP_REASON] = output.token
        request.sink.finish(reason, extras or None)
        request.sequence = None  # which holds the request: the collector, which comes rarely, shall not be needed
