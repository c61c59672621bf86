"""One choice's tokens to text: detokenising and everything that ends a text, without I/O or clock.

The frontend keeps one `Detokenizer` per choice and calls it once per token of every
stream, so this is the hottest code of the process: no objects are made per token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from dynamo.llm.processing.stop_strings import StopMatcher
from dynamo.llm.protocols import CANCELLED, EOS, ERROR, LENGTH, STOP, PreprocessedRequest
from dynamo.llm.tokenizer.tokenizer import Tokenizer

_OPENAI: Final = {EOS: "stop", STOP: "stop", CANCELLED: "stop", LENGTH: "length", ERROR: "error"}
_NO_IDS: Final[frozenset[int]] = frozenset()


def openai_finish_reason(finish: str) -> str:
    """Return OpenAI's name for an engine's finish reason (`error` stays: the caller answers with an error)."""
    return _OPENAI.get(finish, "stop")


class _Showing:
    """Stream in which some special tokens become text: a parser looks for them."""

    __slots__ = ("_shown", "_step")

    def __init__(self, step: Callable[[int], str], shown: Mapping[int, str]) -> None:
        self._step, self._shown = step, shown

    def step(self, token_id: int) -> str:
        marker = self._shown.get(token_id)
        return self._step(token_id) if marker is None else self._step(token_id) + marker


class _Measuring:
    """Stream whose characters are counted."""

    __slots__ = ("_step", "length")

    def __init__(self, step: Callable[[int], str]) -> None:
        self._step, self.length = step, 0

    def step(self, token_id: int) -> str:
        text = self._step(token_id)
        self.length += len(text)
        return text


@lru_cache(maxsize=64)
def _shared(ids: frozenset[int]) -> frozenset[int]:
    """Return the same object for the same ids: one that all streams look at stays in the processor's caches."""
    return ids


class Detokenizer:
    """Feed ids with `push` or `push_one`; once `finish_reason` is set the text has ended.

    `tokens` counts what was used (the token that ended the text included).
    """

    __slots__ = (
        "_include_stop", "_matcher", "_max_tokens", "_measuring", "_min_tokens", "_step", "_stop_ids", "_visible_stops",
        "finish_reason", "stop_reason", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        stop_token_ids: Iterable[int] = (),
        eos_token_ids: Iterable[int] = (),
        ignore_eos: bool = False,
        min_tokens: int | None = None,
        max_tokens: int | None = None,
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        shown: Mapping[int, str] | None = None,
        measured: bool = False,
    ) -> None:
        """Start; `measured`: `length` will be asked for."""
        self._step = tokenizer.text_stream(prompt_ids, skip_special_tokens).step
        if shown and skip_special_tokens:
            self._step = _Showing(self._step, shown).step
        self._measuring = _Measuring(self._step) if measured else None
        if self._measuring is not None:
            self._step = self._measuring.step
        self._visible_stops = frozenset(stop_token_ids)
        self._stop_ids = _shared(self._visible_stops | (_NO_IDS if ignore_eos else frozenset(eos_token_ids)))
        self._matcher = StopMatcher(stop, include_stop_str_in_output) if stop else None
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens or 0
        self._max_tokens = sys.maxsize if max_tokens is None else max_tokens
        self.tokens = 0
        self.finish_reason: str | None = "length" if max_tokens == 0 else None
        self.stop_reason: str | int | None = None

    @classmethod
    def for_request(
        cls, tokenizer: Tokenizer, request: PreprocessedRequest, shown: Mapping[int, str] | None = None, *,
        measured: bool = False,
    ) -> Detokenizer:  # fmt: skip
        """Start on the answer to `request`; the special tokens in `shown` become text though others don't."""
        ends = request.stop_conditions
        return cls(
            tokenizer,
            request.token_ids,
            stop=ends.stop,
            stop_token_ids=ends.stop_token_ids,
            eos_token_ids=request.eos_token_ids,
            ignore_eos=ends.ignore_eos,
            min_tokens=ends.min_tokens,
            max_tokens=ends.max_tokens,
            include_stop_str_in_output=request.sampling_options.include_stop_str_in_output,
            skip_special_tokens=request.output_options.skip_special_tokens,
            shown=shown,
            measured=measured,
        )

    @property
    def length(self) -> int:
        """Return the characters made so far, held-back ones included: before a push, the next token's text offset.

        0 where the text isn't measured.
        """
        return 0 if self._measuring is None else self._measuring.length

    def push(self, token_ids: Sequence[int], finish: str | None = None) -> tuple[str, str | None, str | int | None]:
        """Add tokens and, at the end, the engine's reason; return `(text, finish_reason, stop_reason)`.

        `finish_reason` is OpenAI's (`stop`, `length`; `error` where the engine said so). It may come before the
        engine's own end (a stop string): the caller then cancels.
        """
        text = ""
        for token_id in token_ids:
            if self.finish_reason is not None:
                break
            text += self.push_one(token_id)
        if finish is not None and self.finish_reason is None:
            text += self._end(openai_finish_reason(finish))
        return text, self.finish_reason, self.stop_reason

    def push_one(self, token_id: int) -> str:
        """Add one token, return the text to show now; look at `finish_reason` afterwards."""
        if self.finish_reason is not None:
            return ""
        self.tokens = count = self.tokens + 1
        if token_id in self._stop_ids and count >= self._min_tokens:
            return self._end_by_id(token_id)
        step = self._step  # a function in an attribute: called in one step, CPython looks it up as a method
        text = step(token_id)
        if self._matcher is not None:
            text = self._matcher.feed(text, count > self._min_tokens)
            if self._matcher.matched is not None:
                self.finish_reason, self.stop_reason = "stop", self._matcher.matched
                return text
        if count >= self._max_tokens:
            return text + self._end("length")
        return text

    def _end_by_id(self, token_id: int) -> str:
        chosen = token_id in self._visible_stops
        if chosen:
            self.stop_reason = token_id
        text = ""
        if chosen and self._include_stop:
            text = self._step(token_id)
        return self._end("stop", text)

    def _end(self, reason: str, last: str = "") -> str:
        self.finish_reason = reason
        return last if self._matcher is None else self._matcher.flush() + last
