"""Answers on their way: what a server's events add is handed to the request's sink, and its counts are compared."""

from __future__ import annotations

import asyncio
import re
from typing import Final

import msgspec

from dynamo.llm.protocols import (
    CACHED_TOKENS,
    COMPLETION_TOKENS,
    EOS,
    LENGTH,
    PROMPT_TOKENS,
    PreprocessedRequest,
    TextRequest,
)
from dynamo.runtime.errors import CapacityExceeded, Disconnected, DynamoException, EngineError, InvalidArgument
from dynamo.worker.engines.openai import text_requests
from dynamo.worker.engines.openai.dialects import Call, Dialect, fault
from dynamo.worker.engines.openai.server_faults import CONTEXT, USAGE, ServerFaults
from dynamo.worker.engines.support.open_requests import EngineOutput, OpenRequests
from dynamo.worker.engines.support.request_checks import left

_COUNTS_SECONDS: Final = 1.0
"""Time that a server has for its counts after the last token."""
_KEPT_FREE: Final = 16
"""Tokens at the end of a context that servers may keep free."""
_OF_CONTEXT: Final = re.compile(rb"context|maximum.{0,20}length", re.IGNORECASE)


class TokensAnswer:
    """Hands one answer's tokens on."""

    def __init__(
        self, open_requests: OpenRequests[asyncio.Task[None]], faults: ServerFaults, dialect: Dialect,
        request: PreprocessedRequest, room: int,
    ) -> None:  # fmt: skip
        self._open, self._faults = open_requests, faults
        self._dialect, self._request, self._room = dialect, request, room
        self._reader = dialect.reader(request)
        self._made: list[int] = []
        self._most = left(request, room)
        self._last: EngineOutput | None = None
        """The tokens that fill the answer: they wait for the server's counts, which come right after them."""

    @property
    def begun(self) -> bool:
        """Tell whether there was output."""
        return bool(self._made)

    def take(self, task: asyncio.Task[None], event: bytes) -> bool:
        """Hand on what an event adds; True once the answer has ended."""
        piece = self._reader.read(event)
        if piece is None:
            return False
        self._made += piece.ids
        if piece.finish is not None and self._reader.usage_report is not None:
            self._compare(piece.finish)
        if self._last is not None:
            piece, self._last = _joined(self._last, piece), None
        elif piece.finish is None and len(self._made) >= self._most:
            self._last = piece
            asyncio.get_running_loop().call_later(_COUNTS_SECONDS, self.end_whole, task)
            return False
        return self._open.hand(task, piece)

    def refused(self, status: int, body: bytes) -> None:
        """Note a prompt that is too long there, and was not by what the server says of its context."""
        if status == 400 and _OF_CONTEXT.search(body):
            self._faults.note(CONTEXT, "refuses a prompt for its length which its context should hold")

    def _compare(self, finish: str) -> None:
        assert self._reader.usage_report is not None, "it has reported"
        prompt = len(self._request.token_ids)
        self._faults.check_usage(self._reader.usage_report, prompt)
        if finish == LENGTH:
            self._faults.check_length(len(self._made), self._most, prompt)

    def end_whole(self, task: asyncio.Task[None]) -> bool:
        """End an answer that is whole, and whose counts don't come; False where tokens are missing."""
        last, self._last = self._last, None
        return last is not None and self._open.hand(task, last._replace(finish=LENGTH))

    def end(self, task: asyncio.Task[None]) -> Call | None:
        """Return the call that goes on, if any; `Disconnected` where the server closed the stream without an end."""
        if self.end_whole(task):
            return None
        call = self._dialect.rest(self._request, self._made, self._room)
        if call is None:
            raise Disconnected("the server ended the stream without saying why")
        return call


def _joined(last: EngineOutput, end: EngineOutput) -> EngineOutput:
    """Return both as one, whose tokens bring what was cached: a frontend that has them all hears no more."""
    cached = {name: value for name, value in (end.ending or {}).items() if name == CACHED_TOKENS}
    extras = {**(last.extras or {}), **(end.extras or {}), **cached}
    return EngineOutput([*last.ids, *end.ids], extras or None, end.finish, end.ending)


class TextAnswer:
    """Hands one answer's text on."""

    def __init__(
        self, open_requests: OpenRequests[asyncio.Task[None]], faults: ServerFaults, request: TextRequest,
        context: int | None = None,
    ) -> None:  # fmt: skip
        """Take what the server announced of its context, where it did."""
        self._open, self._faults, self._reader = open_requests, faults, text_requests.TextReader()
        self._context = context
        most = request.body.get("max_completion_tokens") or request.body.get("max_tokens")
        self._most = most if type(most) is int else None
        self._counts: dict[str, int] = {}
        self.begun = False

    def take(self, task: asyncio.Task[None], event: bytes) -> bool:
        """Hand on what an event adds. The counts come after the end, so it is not over with that."""
        piece = self._reader.read(event)
        self._counts |= piece.counts or {}
        if piece.text:
            self.begun = True
            self._open.push(task, piece.text, None)
        return task not in self._open

    def end(self, task: asyncio.Task[None]) -> None:
        """End with what the server gave as reason; `Disconnected` where it gave none."""
        if self._reader.finish is None:
            raise Disconnected("the server ended the stream without saying why")
        self._compare()
        self._open.finish(task, self._reader.finish or EOS, dict(self._counts) or None)

    def end_whole(self, task: asyncio.Task[None]) -> bool:
        """Text is whole only where the server says so."""
        return False

    def refused(self, status: int, body: bytes) -> None:
        """Take a refusal as it is: only the server knows what its prompts hold."""

    def _compare(self) -> None:
        """Look for counts that can't be so; nothing here knows the model's tokens."""
        count = self._counts.get(COMPLETION_TOKENS)
        if count is None:
            self._faults.note(USAGE, "counts no tokens at the end of its answers: none are reported")
        elif (count == 0 and self.begun) or (self._most is not None and count > self._most):
            said = "some" if self._most is None else f"{self._most} at most"
            self._faults.note(USAGE, f"counts {count} tokens in an answer that has {said}")
        elif self._reader.finish == LENGTH and self._most is not None and count < self._most:
            self._compare_context(count + self._counts.get(PROMPT_TOKENS, 0))

    def _compare_context(self, length: int) -> None:
        """Look whether an answer that was cut before its own limit filled the context that the server announced."""
        if self._context is not None and length < self._context - _KEPT_FREE:
            self._faults.note(
                CONTEXT, f"ended an answer at {length} tokens, and announces a context of {self._context}"
            )


def refusal(status: int, body: bytes) -> DynamoException:
    """Return what an answer without a stream means to its client."""
    try:
        data = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        data = None
    server_fault = fault(data) if isinstance(data, dict) else None
    text = (
        str(server_fault.message if server_fault is not None else body[:300].decode("utf-8", "replace"))
        or "no reason given"
    )
    if status in (400, 404, 413, 415, 422):
        return InvalidArgument(f"the server refuses the request ({status}): {text}")
    if status in (429, 503):
        return CapacityExceeded(f"the server is busy ({status}): {text}")
    return EngineError(f"the server answers {status}: {text}")
