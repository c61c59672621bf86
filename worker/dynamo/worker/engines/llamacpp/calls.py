"""A request on its way through one or more calls of llama.cpp's server core. Pure; `engine.py` makes the calls.

Mostly it is one call. Below `min_tokens` EOS is off, which is a call of its own. And where
the last character of an answer is not complete, llama.cpp keeps its tokens to itself: then
they are asked for again, with as many more as complete a character, of which those that
were wanted are taken.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from dynamo.llm.protocols import EOS, LENGTH, STOP, STOP_REASON, PreprocessedRequest
from dynamo.worker.engines.llamacpp.requests import Chunk, ChunkReader, CompletionPhase
from dynamo.worker.engines.support.request_checks import left, stop_reasons

_REST_OF_CHARACTER: Final = 3
"""Tokens that may follow the first one of a character."""


class End(NamedTuple):
    """End of a stream: why it ended, for its sink."""

    reason: str
    extras: dict[str, Any] | None = None


class CallSequence:
    """`next_call` says what to ask, `hear` takes its chunks; `end` is set once it is over."""

    def __init__(self, request: PreprocessedRequest, room: int, reader: ChunkReader) -> None:
        conditions = request.stop_conditions
        self.tokens = list(request.token_ids)
        """Prompt, and answer so far."""
        self.end: End | None = None
        self._reader = reader
        self._stops = stop_reasons(request)
        self._ignore_eos = conditions.ignore_eos
        self._begin = len(self.tokens)
        self._wanted = left(request, room)
        self._floor = min(conditions.min_tokens or 0, self._wanted)
        self._whole = request.sampling_options.guided_decoding is None
        self._calls = [self._rest]
        if self._floor and not self._ignore_eos:
            self._calls.append(self._below_floor)

    @property
    def _made(self) -> int:
        return len(self.tokens) - self._begin

    def next_call(self) -> CompletionPhase | None:
        """Return what to ask now; None: it is over, and `end` says why."""
        while self._calls and self.end is None:
            if phase := self._calls.pop()():
                return phase
        self.end = self.end or End(LENGTH)
        return None

    def _below_floor(self) -> CompletionPhase | None:
        return CompletionPhase(self._floor, True, last=False)

    def _rest(self) -> CompletionPhase | None:
        missing = self._wanted - self._made
        if self._whole:  # a grammar would begin anew in another call
            self._calls.append(self._held_back)
        return CompletionPhase(missing, self._ignore_eos) if missing else None

    def _held_back(self) -> CompletionPhase | None:
        missing = self._wanted - self._made
        return CompletionPhase(missing + _REST_OF_CHARACTER, self._ignore_eos) if missing else None

    def hear(self, chunk: Chunk, phase: CompletionPhase) -> tuple[list[int], dict[str, Any] | None]:
        """Take a chunk of a call; return what to push, tokens and extras."""
        ids, extras, finish = self._reader.read(chunk, self._wanted - self._made)
        for number, token in enumerate(ids):
            self.tokens.append(token)
            if token in self._stops and self._made >= self._floor:
                return self._ended(ids[: number + 1], extras, token)
        if finish == EOS and phase.last:
            self.end = End(EOS, None if ids else extras)
        elif self._made >= self._wanted:
            self.end = End(LENGTH, None if ids else extras)
        return ids, extras

    def _ended(
        self, ids: list[int], extras: dict[str, Any] | None, token: int
    ) -> tuple[list[int], dict[str, Any] | None]:
        reason = self._stops[token]
        self.end = End(reason, {STOP_REASON: token} if reason == STOP else None)
        return ids, extras
