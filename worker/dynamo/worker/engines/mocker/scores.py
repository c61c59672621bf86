"""Log probabilities that nobody computed: the same for the same request, best first, of the answer and the prompt."""

from __future__ import annotations

from typing import Any, Final

from dynamo.llm.protocols import LOG_PROBS, PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS, TOP_LOGPROBS, PreprocessedRequest
from dynamo.runtime.context import Context
from dynamo.worker.engine import Sink, context_of

_STEP: Final = 1009
"""A prime: neighbouring tokens get different numbers."""


def wants_scores(request: PreprocessedRequest) -> bool:
    """Tell whether a request asks for log probabilities of either kind."""
    options = request.output_options
    return options.logprobs is not None or options.prompt_logprobs is not None


class ScoredSink:
    """Sink that adds log probabilities to what passes."""

    def __init__(self, sink: Sink, request: PreprocessedRequest, vocabulary: int) -> None:
        self._sink, self._vocabulary = sink, vocabulary
        self._top, self._of_prompt = request.output_options.logprobs, request.output_options.prompt_logprobs
        self._prompt = request.token_ids
        self._at = len(request.token_ids)
        self._first = True

    @property
    def context(self) -> Context:
        """Return the request's context."""
        return context_of(self._sink)

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        """Pass tokens on with their scores."""
        scores = dict(extras or {})
        if self._first:
            scores |= self._prompt_scores()
        if self._top is not None:
            ids = produced if isinstance(produced, list) else []
            rows = [self._row(token, self._at + index, self._top) for index, token in enumerate(ids)]
            scores[LOG_PROBS] = [row[0][1] for row in rows]
            scores[TOP_LOGPROBS] = [row[: self._top] for row in rows]
        self._at += len(produced)
        self._sink.push(produced, scores or None)

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        """End well; of an answer without tokens, the prompt's scores leave now."""
        if self._first and (scores := self._prompt_scores()):
            self._sink.push([], scores)
        self._sink.finish(reason, extras)

    def fail(self, error: Exception) -> None:
        self._sink.fail(error)

    def _prompt_scores(self) -> dict[str, Any]:
        self._first = False
        if self._of_prompt is None:
            return {}
        rows = [self._row(token, at, self._of_prompt) for at, token in enumerate(self._prompt)]
        tops = [row[: self._of_prompt] for row in rows]
        return {PROMPT_LOGPROBS: [None, *(row[0][1] for row in rows[1:])], PROMPT_TOP_LOGPROBS: [None, *tops[1:]]}

    def _row(self, token: int, at: int, top: int) -> list[list[Any]]:
        """Return a token and `top` others, best first: what the mocker says is always the likeliest."""
        best = -((token * _STEP + at * 31) % 1000 + 1) / 2000
        others = ((token + number) % self._vocabulary for number in range(1, top))
        return [[token, best], *([other, best - number] for number, other in enumerate(others, 1))]
