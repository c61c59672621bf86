"""How one request comes in, whatever its route: bounds, its time limit, its body, and a turn in the threads.

`routes/model_request.py` has one per request for a model, `routes/models.py` one per request for tokens. What a body
takes of memory and time is bounded here; what it may say is for `openai/requests.py` to check.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dynamo.frontend.http.body_budget import FREE, Share
from dynamo.frontend.http.requests import (
    TIMEOUT_HEADER,
    Receive,
    Scope,
    announced_size,
    check_json,
    read_body,
    timeout_seconds,
)
from dynamo.frontend.limits.concurrency_limits import Slot, caller_of
from dynamo.frontend.limits.json_shape import SMALL
from dynamo.frontend.limits.request_threads import Turn
from dynamo.frontend.services import Services
from dynamo.runtime.errors import DeadlineExceeded

LARGE_BODY: Final = SMALL
"""Bytes; larger bodies are read in threads, in turn. The work that smaller ones cause is milliseconds."""


class Intake:
    """One request, until it is understood."""

    def __init__(self, services: Services, began: float) -> None:
        self._services, self._began = services, began
        self._slot: Slot | None = None
        self.deadline: float | None = None
        self._limit_said = ""
        self._caller = b""
        self._share: Share | None = None

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Let it in, and return its body."""
        if self._services.limiter is not None:
            self._slot = self._services.limiter.enter(scope)
        check_json(scope)
        self.deadline = self._deadline(scope)
        if self.deadline is None:
            return await self._read(scope, receive)
        try:
            async with asyncio.timeout(self.deadline - time.monotonic()):
                return await self._read(scope, receive)
        except TimeoutError:
            raise DeadlineExceeded("the request's time limit passed before its body was here") from None

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limit, size = self._services.settings.body_limit, announced_size(scope)
        if size is not None and size <= FREE:
            return await read_body(scope, receive, limit)
        self._caller = caller_of(scope)
        if size is not None and size <= limit:
            await self._take(size)
            return await read_body(scope, receive, limit)
        raw = await read_body(scope, receive, limit, self._take)  # larger than announced bodies are refused in there
        if self._share is not None:
            self._services.bodies.shrink(self._share, len(raw))
        return raw

    async def _take(self, size: int) -> None:
        self._share = await self._services.bodies.take(self._caller, size)

    def to_model(self, model: str, answers: int = 1) -> None:
        """Count it as so many answers of this model; raises the 503 that refuses it."""
        if self._slot is not None and self._services.limiter is not None:
            self._services.limiter.to_model(self._slot, model, answers)

    def turn(self) -> Turn:
        """Return a turn in the threads."""
        return self._services.threads.turn(self._caller, self.deadline)

    def understood(self) -> None:
        """Give the body's share back: nothing but what was made of it is left."""
        share, self._share = self._share, None
        if share is not None:
            self._services.bodies.give_back(share)

    def leave(self) -> None:
        """Leave: whatever became of it, it counts against no bound any more."""
        self.understood()
        if self._slot is not None and self._services.limiter is not None:
            self._services.limiter.leave(self._slot)

    def too_late(self, error: DeadlineExceeded) -> DeadlineExceeded:
        """Return the error, with whose limit it was."""
        return DeadlineExceeded(f"{error.message} ({self._limit_said})") if self._limit_said else error

    def _deadline(self, scope: Scope) -> float | None:
        own, default = timeout_seconds(scope), self._services.settings.request_timeout_secs
        limit = default if own is None else own
        if limit is None:
            return None
        self._limit_said = f"{limit:g} s, by {TIMEOUT_HEADER if own is not None else 'the default of this frontend'}"
        return self._began + limit
