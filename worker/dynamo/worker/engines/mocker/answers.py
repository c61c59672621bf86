"""What the mocker says to a request: made-up text, an answer that keeps to a constraint, thoughts, calls of tools.

All of it follows from the request and the engine's seed, so that another worker goes on with it where one was lost.
"""

from __future__ import annotations

import zlib
from typing import Final

from dynamo.llm import Tokenizer
from dynamo.llm.parsers.parser_names import GPT_OSS
from dynamo.llm.parsers.reasoning_formats import THOUGHTS
from dynamo.llm.processing.token_limits import ALONE, BANNED, without
from dynamo.llm.protocols import EOS, LENGTH, PreprocessedRequest
from dynamo.worker.engines.constraints.process import ROOM, SEED, WHOLE, WRITTEN, compiled
from dynamo.worker.engines.mocker.arguments import MockArguments
from dynamo.worker.engines.mocker.images import description
from dynamo.worker.engines.mocker.spoken_calls import LONGEST_TRIGGER, calls_asked_for, spoken
from dynamo.worker.engines.mocker.stepper import TextAnswer
from dynamo.worker.engines.support.request_checks import logit_bias

TEXT: Final = (
    " The quick brown fox jumps over the lazy dog while five boxing wizards watch from a quiet hill,"
    " and every good worker sends its tokens one step at a time."
)
"""What it says, again and again."""
THOUGHT: Final = "I say what I always say."
_SHORTEST: Final = 100
_LENGTHS: Final = 300
"""An answer that nobody has set an end for has so many tokens from the shortest on."""
_TAIL: Final = 64
"""Tokens at the end of a prompt that tell it from others."""
_ENOUGH: Final = 512
"""Tokens, and so bytes at least, in which what keeps to a constraint ends by itself where it can."""
_MARKER: Final = 12
"""Tokens at the end of a prompt that may hold a thought's marker."""


class AnswerWriter:
    """Writer of one mocker's answers. `first_only`: a prefill engine, which makes one token of each."""

    def __init__(
        self, arguments: MockArguments, tokenizer: Tokenizer, *, tools: str = "", thoughts: str = "",
        first_only: bool = False,
    ) -> None:  # fmt: skip
        self._arguments, self._tokenizer = arguments, tokenizer
        self._tools, self._thoughts, self._first_only = tools, thoughts, first_only
        self._text = tokenizer.encode(TEXT, add_special=False)

    def probe(self) -> TextAnswer:
        """Return one token, for a prompt that is only computed."""
        return TextAnswer(self._text, 0, 1)

    def answer(self, request: PreprocessedRequest, room: int, stops: dict[int, str]) -> TextAnswer | None:
        """Return the answer; None where all of it was given before."""
        conditions, given = request.stop_conditions, request.answered_tokens
        thought = self._thought(request)
        script = self._script(request, thought)
        most = room if conditions.max_tokens is None else min(conditions.max_tokens, room)
        wanted, end = given + most, LENGTH
        marks: dict[int, int] | None = None
        if script is not None:
            ids, whole = script
            if len(ids) <= given:
                return None
            if len(ids) <= wanted:
                wanted, end = len(ids), EOS if whole else LENGTH
            text, position = ids, 0
        else:
            if most == room and not conditions.ignore_eos:  # nobody has said when to end
                own = max(given + max(1, conditions.min_tokens or 0), _SHORTEST + fingerprint(request) % _LENGTHS)
                wanted, end = (own, EOS) if own <= wanted else (wanted, LENGTH)
            text, position = self._usual(request), (_drawn(request) or 0) + self._arguments.seed
            if request.images:
                text, position = [*self._tokenizer.encode(description(request.images), add_special=False), *text], 0
            marks = None if self._only(request) else self._marks(thought, wanted)
            if marks and self._arguments.reasoning is None:
                position -= len(marks)  # the answer begins behind the thought
        if self._first_only:
            wanted, end = given + 1, LENGTH
        return TextAnswer(
            text, position % len(text), wanted, floor=given + (conditions.min_tokens or 0), stops=stops, marks=marks,
            at=given, end=end,
        )  # fmt: skip

    def _usual(self, request: PreprocessedRequest) -> list[int]:
        """Return what it says again and again, without what the request bans; of what it prefers, nothing else."""
        options = request.sampling_options
        if options.logit_bias is None and options.bad_words is None:
            return self._text
        if alone := self._only(request):
            return [token for token in self._text if token in alone] or sorted(alone)
        text, banned = self._text, [token for token, bias in logit_bias(request).items() if bias <= BANNED]
        if options.bad_words or banned:
            words = [[token] for token in banned]
            words += [self._tokenizer.encode(word, add_special=False) for word in options.bad_words or ()]
            text = without(text, words) or [next(n for n in range(len(words) + 1) if [n] not in words)]
        return text

    def _only(self, request: PreprocessedRequest) -> set[int]:
        """Return the tokens beside which no other may come; empty where all may."""
        return {token for token, bias in logit_bias(request).items() if bias >= ALONE}

    def seed(self, request: PreprocessedRequest) -> int:
        """Return what a constrained answer is drawn by: the request's own, or its prompt's."""
        own = _drawn(request)
        return (fingerprint(request) if own is None else own) + self._arguments.seed

    def room(self, request: PreprocessedRequest) -> int:
        """Return the tokens that an answer may have, those that were given before counted; 0: enough for any."""
        most = request.stop_conditions.max_tokens
        return 0 if most is None or most > _ENOUGH else request.answered_tokens + most

    def _script(self, request: PreprocessedRequest, thought: str) -> tuple[list[int], bool] | None:
        """Return an answer that is more than made-up text, and whether it is whole."""
        wanted = request.sampling_options.guided_decoding
        if wanted:
            if WRITTEN not in wanted:  # without a server nobody has compiled it
                wanted = compiled("mocker", {**wanted, SEED: self.seed(request), ROOM: self.room(request)})
            return self._tokenizer.encode(wanted[WRITTEN], add_special=False), wanted[WHOLE]
        if not self._tools:
            return None
        prompt = _prompt(request)
        calls = calls_asked_for(self._tokenizer.decode(prompt[-LONGEST_TRIGGER:]))
        if not calls or (text := spoken(self._tools, calls)) is None:
            return None
        return self._tokenizer.encode(thought + text, add_special=False), True

    def _marks(self, thought: str, wanted: int) -> dict[int, int] | None:
        """Return which tokens of an answer are not the usual text: thoughts, where there is room for both."""
        if (reasoning := self._arguments.reasoning) is not None:
            return reasoning.marks(wanted)
        ids = self._tokenizer.encode(thought, add_special=False) if thought else []
        return dict(enumerate(ids)) if ids and 2 * len(ids) <= wanted else None

    def _thought(self, request: PreprocessedRequest) -> str:
        """Write what the model thinks, as its parser reads it; nothing where the prompt has forbidden it."""
        if not self._thoughts:
            return ""
        if self._thoughts == GPT_OSS:
            return f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>"
        form = THOUGHTS[self._thoughts]
        tail = self._tokenizer.decode(_prompt(request)[-_MARKER:], skip_special=False)
        if tail.rstrip().endswith(form.closes):
            return ""
        opener = "" if tail.rstrip().endswith(form.opens) else f"{form.opens[0]}\n"
        return f"{opener}{THOUGHT}\n{form.closes[0]}\n\n"


def fingerprint(request: PreprocessedRequest) -> int:
    """Return a number that a prompt's length and end give, the same on every machine."""
    prompt = len(request.token_ids) - request.answered_tokens
    return zlib.crc32(repr((prompt, request.token_ids[max(0, prompt - _TAIL) : prompt])).encode())


def _drawn(request: PreprocessedRequest) -> int | None:
    """Return the request's own seed, or what it differs by from other answers to its prompt; None for the first."""
    options = request.sampling_options
    if options.seed is None and request.choice and options.temperature != 0:
        return request.choice
    return options.seed


def _prompt(request: PreprocessedRequest) -> list[int]:
    """Return as much of a prompt's end as is looked at."""
    end = len(request.token_ids) - request.answered_tokens
    return request.token_ids[max(0, end - LONGEST_TRIGGER) : end]
