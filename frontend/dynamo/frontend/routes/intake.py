"""How any request comes in, also one for tokens (`models.py`): bounds, its time limit, its body, a turn in the threads.

What a body takes of memory and time is bounded here; what it may say is for `openai/requests.py` to check.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec

from dynamo.frontend.http.body_budget import FREE, Share
from dynamo.frontend.http.connection import CONNECTION, Connection
from dynamo.frontend.http.content_encoding import decoded, encoding_of
from dynamo.frontend.http.requests import (
    TIMEOUT_HEADER,
    Receive,
    Scope,
    announced_size,
    check_json,
    header,
    read_body,
    timeout_seconds,
)
from dynamo.frontend.limits.concurrency_limits import Slot, caller_of
from dynamo.frontend.limits.request_threads import Turn
from dynamo.frontend.openai.body import SMALL
from dynamo.frontend.responses.stream import Headers
from dynamo.frontend.services import Services
from dynamo.frontend.validation.unknown_fields import header as ignored_header
from dynamo.runtime.errors import DeadlineExceeded

SHORT_BODY: Final = 4096
"""Bytes; prompts of shorter bodies are tokenised on the loop, others take their model's turn in the threads."""
LARGE_BODY: Final = SMALL
"""Bytes; larger bodies are read in threads, in turn. The work that smaller ones cause is milliseconds."""


class Intake:
    """One request, until it is understood."""

    __slots__ = ("_began", "_caller", "_limit_said", "_scope", "_services", "_share", "_slot", "deadline")

    def __init__(self, services: Services, began: float) -> None:
        self._services, self._began = services, began
        self._slot: Slot | None = None
        self.deadline: float | None = None
        self._limit_said = ""
        self._caller: bytes | None = None
        self._scope: Scope | None = None
        self._share: Share | None = None

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """Let it in, and return its body."""
        if self._services.limiter is not None:
            self._slot = self._services.limiter.enter(scope)
        self._scope = scope
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
        if (given := header(scope, b"content-encoding")) is not None and (encoding := encoding_of(given)):
            return await self._read_encoded(scope, receive, encoding, limit)
        if size is not None and size <= FREE:
            connection = scope.get(CONNECTION)
            raw = connection.whole_body(scope) if size <= limit and isinstance(connection, Connection) else None
            return await read_body(scope, receive, limit) if raw is None else raw
        self._caller = caller_of(scope)
        if size is not None and size <= limit:
            await self._take(size)
            return await read_body(scope, receive, limit)
        raw = await read_body(scope, receive, limit, self._take)  # larger than announced bodies are refused in there
        if self._share is not None:
            self._services.bodies.shrink(self._share, len(raw))
        return raw

    async def _read_encoded(self, scope: Scope, receive: Receive, encoding: str, limit: int) -> bytes:
        """Read a compressed body, with room for the largest: what it becomes is known once it is there."""
        self._caller = caller_of(scope)
        await self._take(limit)
        body = await decoded(await read_body(scope, receive, limit), encoding, limit)
        assert self._share is not None
        self._services.bodies.shrink(self._share, len(body))
        return body

    async def _take(self, size: int) -> None:
        assert self._caller is not None
        self._share = await self._services.bodies.take(self._caller, size)

    def check_fields(self, body: dict[str, Any], kind: type[msgspec.Struct], headers: Headers) -> None:
        """Name what nothing here knows in a header and, once, in the log; or refuse it in strict mode."""
        services = self._services
        if ignored := services.ignored.check(body, kind, strict=services.settings.strict_fields):
            headers.append(ignored_header(ignored))

    def to_model(self, model: str, endpoint: str, answers: int = 1) -> None:
        """Count it as so many answers of this model; raises the 503 that refuses it."""
        if self._slot is not None and self._services.limiter is not None:
            self._services.limiter.to_model(self._slot, model, endpoint, answers)

    def turn(self) -> Turn:
        """Return a turn in the threads."""
        if self._caller is None:
            self._caller = b"" if self._scope is None else caller_of(self._scope)
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
