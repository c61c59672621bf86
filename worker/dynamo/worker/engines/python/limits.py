"""Where an answer ends, whatever the file does: at its length, at a stop token, at a stop string. Pure.

The engine contract asks it of every engine, and files that just yield what they have are the rule. What a file
yields beyond the end is dropped, and the file is closed.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from dynamo.llm.processing.stop_strings import StopMatcher
from dynamo.llm.protocols import LENGTH, LOG_PROBS, STOP, STOP_REASON, TOP_LOGPROBS, PreprocessedRequest, TextRequest
from dynamo.llm.serving.handler_io import Piece
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.support.request_checks import stop_reasons

_PER_TOKEN: Final = (LOG_PROBS, TOP_LOGPROBS)


class Limits(Protocol):
    """Decide how much of a file's output belongs to the answer."""

    def cut(self, piece: Piece) -> tuple[Piece, bool]:
        """Return the part of a piece that is wanted, and whether the answer is complete with it."""

    def rest(self) -> Any:
        """Return what is still to be sent where the file has ended by itself; empty mostly."""


class TokenLimits:
    """Ends at `max_tokens`, at a stop token id, at an EOS id; the token that ends it is part of the answer."""

    def __init__(self, request: PreprocessedRequest) -> None:
        conditions = request.stop_conditions
        self._stops = stop_reasons(request)
        self._most, self._least = conditions.max_tokens, conditions.min_tokens or 0
        self._count = 0

    def cut(self, piece: Piece) -> tuple[Piece, bool]:
        for at, token in enumerate(piece.produced, 1):
            self._count += 1
            if token in self._stops and self._count >= self._least:
                why = self._stops[token]
                return _shortened(piece, at, why, {STOP_REASON: token} if why == STOP else None)
            if self._count == self._most:
                return _shortened(piece, at, LENGTH, None)
        return piece, False

    def rest(self) -> list[int]:
        return []


def _shortened(piece: Piece, count: int, finish: str, more: dict[str, Any] | None) -> tuple[Piece, bool]:
    if piece.finish is not None and count == len(piece.produced):
        return piece, False  # the file ends there too, and may have more to say of it
    extras = dict(piece.extras or {})
    for name in _PER_TOKEN:
        if name in extras:
            extras[name] = extras[name][:count]
    extras |= more or {}
    return Piece(piece.produced[:count], finish, extras or None), True


class TextLimits:
    """Ends at a stop string of the client. How many tokens a text has only the file knows."""

    def __init__(self, request: TextRequest) -> None:
        stop = request.body.get("stop")
        stops = [stop] if isinstance(stop, str) else stop or []
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise InvalidArgument(f"stop must be a string or a list of strings, got {stop!r}")
        wanted = bool(request.body.get("include_stop_str_in_output"))
        self._matcher = StopMatcher(stops, wanted) if any(stops) else None

    def cut(self, piece: Piece) -> tuple[Piece, bool]:
        matcher = self._matcher
        if matcher is None:
            return piece, False
        text = matcher.feed(piece.produced)
        if matcher.matched is not None:
            return Piece(text, STOP, {**(piece.extras or {}), STOP_REASON: matcher.matched}), True
        if piece.finish is not None:
            text += matcher.flush()
        return Piece(text, piece.finish, piece.extras), False

    def rest(self) -> str:
        return "" if self._matcher is None else self._matcher.flush()


def wanted_nothing(request: PreprocessedRequest | TextRequest) -> bool:
    """Tell whether the client asks for no token at all."""
    if isinstance(request, PreprocessedRequest):
        return request.stop_conditions.max_tokens == 0
    return any(request.body.get(name) == 0 for name in ("max_completion_tokens", "max_tokens"))
