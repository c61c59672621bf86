"""The calls by which llama.cpp says how likely a prompt is."""

from __future__ import annotations

import json
from typing import Any

from dynamo.llm.protocols import PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS
from dynamo.worker.engines.llamacpp.prompt_scores import PromptScores
from dynamo.worker.engines.llamacpp.requests import read_chunk
from dynamo.worker.engines.support.request_checks import UNKNOWN_LOGPROB


def said(scores: PromptScores, *tokens: int) -> None:
    """Have llama.cpp say tokens, each with another one beside it."""
    for token in tokens:
        top = [{"id": token, "logprob": -0.5}, {"id": 1, "logprob": -2.0}]
        entry = {"id": token, "logprob": -0.5, "bytes": [97], "top_logprobs": top}
        scores.hear(read_chunk(json.dumps({"choices": [{"text": "a", "logprobs": {"content": [entry]}}]}).encode()))


def asked(scores: PromptScores) -> dict[str, Any]:
    body = scores.next_call()
    assert body is not None
    made: dict[str, Any] = json.loads(body)
    return made


def test_each_token_behind_the_first_is_made_again() -> None:
    """A bias makes it come; the first has nothing before it."""
    scores = PromptScores([2, 7, 8], 1)
    call = asked(scores)
    assert (call["prompt"], call["n_predict"], call["logit_bias"]) == ([2], 1, [[7, 10_000.0]])
    said(scores, 7)
    assert asked(scores)["prompt"] == [2, 7]
    said(scores, 8)
    assert scores.next_call() is None
    assert scores.extras() == {
        PROMPT_LOGPROBS: [None, -0.5, -0.5], PROMPT_TOP_LOGPROBS: [None, [[7, -0.5]], [[8, -0.5]]],
    }  # fmt: skip


def test_what_is_not_told_is_unknown() -> None:
    """It is asked for once: a token may end within a character; another token than it is not it."""
    scores = PromptScores([2, 240, 159, 8], 0)
    asked(scores)
    assert asked(scores)["prompt"] == [2, 240]  # nothing was said of 240
    said(scores, 5)
    assert asked(scores)["prompt"] == [2, 240, 159]
    said(scores, 8)
    assert scores.next_call() is None
    assert scores.extras()[PROMPT_LOGPROBS] == [None, UNKNOWN_LOGPROB, UNKNOWN_LOGPROB, -0.5]


def test_a_single_token_has_no_score() -> None:
    """There is nothing to ask."""
    scores = PromptScores([2], 3)
    assert scores.next_call() is None
    assert scores.extras() == {PROMPT_LOGPROBS: [None], PROMPT_TOP_LOGPROBS: [None]}
