"""One call of ModelStreamInfer: requests come one after another, each is answered by one message or by many.

Requests with ids run side by side, as their answers can be told apart. One without an id is alone: it waits for those
before it, and those behind it wait for it; so does one whose id is taken. A request that is refused ends the call with
its status, as in NVIDIA Dynamo, once those that were begun are answered; one that fails in mid-answer says so in a
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc  # type: ignore[import-untyped]

from dynamo.frontend.errors import ApiError
from dynamo.frontend.http.asgi_call import Exchange, Take
from dynamo.frontend.kserve.request import Asked, read
from dynamo.frontend.kserve.response import in_stream, piece, streamed, whole
from dynamo.frontend.kserve.status_codes import Refusal, Slow
from dynamo.frontend.responses.stream import CLIENT_STALL

SIDE_BY_SIDE: Final = 128
"""Requests of one call at once; the next is read when one of them has ended."""
Ask = Callable[[Asked, Any, Take | None], Awaitable[Exchange]]


class Waits(NamedTuple):
    """Seconds that a call waits for its client."""

    first: float
    """For the first request."""
    later: float
    """For the next one, where none is being answered: clients keep streams open for what they may ask."""
    stall: float
    """Until an answer is taken."""


class Streaming:
    """Answers the requests of one stream call, one after the other."""

    def __init__(self, ask: Ask, context: Any, halt: asyncio.Event, waits: Waits, hit: Callable[[str], None]) -> None:
        """Begin; `hit` counts a time limit that ended something."""
        self._ask, self._context, self._halt, self._waits, self._hit = ask, context, halt, waits, hit
        self._running: dict[asyncio.Task[None], str] = {}
        self._refusal: Exception | None = None
        self._asked = False
        self._writing = asyncio.Lock()
        """gRPC takes one message of a call at a time."""
        self._written: asyncio.Future[None] | None = None
        """The last one; gRPC goes on with it though nobody waits for it any more."""

    async def run(self) -> None:
        """Answer until the client has no more requests and all are answered; raises what refuses one."""
        halting = asyncio.ensure_future(self._halt.wait())
        try:
            while (request := await self._next(halting)) is not None:
                await self._room(request.id)
                if self._refusal is not None:
                    break
                try:
                    asked = read(request)
                except ApiError as error:
                    self._refusal = error
                    break
                task = asyncio.ensure_future(self._answer(asked))
                self._running[task] = request.id
                task.add_done_callback(self._ended)
            while self._running and not isinstance(self._refusal, Slow):  # who doesn't read one answer reads none
                await asyncio.wait([*self._running], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left: list[asyncio.Task[Any]] = [halting, *self._running]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        if self._refusal is not None:
            if self._written is not None and not self._written.done():  # gRPC has no status while a message waits
                await asyncio.wait([self._written])
            raise self._refusal

    async def _next(self, halting: asyncio.Task[Any]) -> Any:
        """Return the next request; None: there is none, or no more are taken."""
        reading = asyncio.ensure_future(self._context.read())
        try:
            while not (reading.done() or halting.done() or self._refusal is not None):
                idle = self._waits.later if self._asked else self._waits.first
                waited = [reading, halting, *self._running]
                ended, _ = await asyncio.wait(
                    waited, timeout=None if self._running else idle, return_when=asyncio.FIRST_COMPLETED
                )
                if not ended:
                    self._refusal = _idle(idle)
            if reading.done():
                request, self._asked = reading.result(), True
                return None if request is grpc.aio.EOF else request
        finally:
            reading.cancel()
        if self._refusal is None:
            self._refusal = Refusal("UNAVAILABLE", "This frontend leaves; ask again, another one answers.")
        return None

    async def _room(self, request_id: str) -> None:
        """Wait until a request with this id may begin."""
        while self._running and self._refusal is None and not self._may_begin(request_id):
            await asyncio.wait([*self._running], return_when=asyncio.FIRST_COMPLETED)

    def _may_begin(self, request_id: str) -> bool:
        taken = self._running.values()
        return bool(request_id) and request_id not in taken and "" not in taken and len(taken) < SIDE_BY_SIDE

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self._refusal is None:
            self._refusal = error if isinstance(error, Exception) else RuntimeError(str(error))

    async def _answer(self, asked: Asked) -> None:
        if not asked.stream:
            exchange = await self._ask(asked, self._context, None)
            await self._write_in_time(in_stream(asked, whole(asked, bytes(exchange.content))))
            return

        async def take(events: bytes) -> None:
            part = piece(events)
            if part.text or part.error or part.finish_reason is not None:
                await self._write(streamed(asked, part))

        await self._ask(asked, self._context, take)

    async def _write_in_time(self, message: Any) -> None:
        """Write what no route waits for."""
        try:
            async with asyncio.timeout(self._waits.stall):
                await self._write(message)
        except TimeoutError:
            self._hit(CLIENT_STALL)
            raise Slow from None

    async def _write(self, message: Any) -> None:
        async with self._writing:
            if self._written is not None and not self._written.done():
                await asyncio.shield(self._written)
            self._written = asyncio.ensure_future(self._context.write(message))
            await asyncio.shield(self._written)


def _idle(seconds: float) -> Refusal:
    return Refusal("DEADLINE_EXCEEDED", f"nothing was asked on this stream for {seconds:g} s; open another one")
