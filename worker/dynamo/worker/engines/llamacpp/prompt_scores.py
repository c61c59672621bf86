"""Log probabilities of a prompt, for which llama.cpp has no answer: its tokens are made again. Pure; `engine.py` asks.

Each call has the prompt so far, and a bias by which the next token comes. What llama.cpp tells of it is how likely the
model found it before any bias. So a prompt costs a step per token: all but the last of a call is cached. (A grammar of
several tokens would save calls, but llguidance takes named tokens for text that is forced, and refuses the second.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dynamo.llm.protocols import PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS
from dynamo.worker.engines.llamacpp.requests import Chunk
from dynamo.worker.engines.support.request_checks import UNKNOWN_LOGPROB

_SURE: Final = 10_000.0
"""A bias beyond any model's logits."""
_CALL: Final = {"stream": True, "cache_prompt": True, "temperature": 0.0, "n_predict": 1}


class PromptScores:
    """Scores of a prompt's tokens: `next_call` says what to ask, `hear` takes its chunks."""

    def __init__(self, tokens: Sequence[int], best: int) -> None:
        self._tokens, self._best = tokens, best
        self._at = self._asked = 1
        self._scores: list[float | None] = [None]
        self._tops: list[list[list[float]] | None] = [None]
        self._first = True

    def next_call(self) -> bytes | None:
        """Return the body of the next call; None: all is known that can be."""
        if not self._first and self._at == self._asked:  # the call before told nothing
            self._add(UNKNOWN_LOGPROB, [])
        self._first = False
        if self._at >= len(self._tokens):
            return None
        self._asked = self._at
        bias = [[self._tokens[self._at], _SURE]]
        body = {**_CALL, "prompt": self._tokens[: self._at], "logit_bias": bias, "logprobs": max(1, self._best)}
        return msgspec.json.encode(body)

    def hear(self, chunk: Chunk) -> None:
        """Take what a chunk says. A token that ends within a character isn't told, and stays unknown."""
        choice = chunk.choices[0]
        for entry in choice.logprobs.content if choice.logprobs is not None else ():
            if self._at == self._asked and self._tokens[self._at] == entry.id:
                top = [[other.id, max(other.logprob, UNKNOWN_LOGPROB)] for other in entry.top_logprobs]
                self._add(max(entry.logprob, UNKNOWN_LOGPROB), top[: self._best])

    def extras(self) -> dict[str, Any]:
        """Return what goes with the first tokens of the answer."""
        return {PROMPT_LOGPROBS: self._scores, PROMPT_TOP_LOGPROBS: self._tops}

    def _add(self, score: float, top: list[list[float]]) -> None:
        self._scores.append(score)
        self._tops.append(top)
        self._at += 1
