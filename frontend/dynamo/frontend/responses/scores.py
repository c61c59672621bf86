"""What is asked of log probabilities beside the answer's: `prompt_logprobs`, and `best_of`.

Only answers that aren't streamed have either, and only requests that ask pay for it. The prompt's come in vLLM's form:
per token an object by token id, null for the first. The best answers are those whose tokens were likeliest, on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.openai.request_structs import ChatRequest, CompletionRequest, Sampling
from dynamo.llm.protocols import LOG_PROBS, PROMPT_LOGPROBS, PROMPT_TOP_LOGPROBS
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from dynamo.frontend.generation.choice import Choice
    from dynamo.frontend.responses.response import ResponseOptions
    from dynamo.llm.tokenizer.tokenizer import Tokenizer

_UNLIKELIEST: Final = float("-inf")


class Scores:
    """Collects them for one answer. `kept`: of the answers to a prompt so many are told; None: all."""

    def __init__(self, top: int | None, kept: int | None) -> None:
        self._top, self._kept = top, kept
        self._prompts: dict[int, tuple[Sequence[Any], Sequence[Any]]] = {}
        self._sums: dict[int, tuple[float, int]] = {}

    def take(self, index: int, ids: Sequence[int], extras: Mapping[str, Any] | None, *, first: bool) -> None:
        """Take what the engine says with a delta of a choice."""
        said = extras or {}
        if first and self._top is not None:
            if (chosen := said.get(PROMPT_LOGPROBS)) is None:
                raise InvalidArgument(
                    "prompt_logprobs: the engine of this model gives no log probabilities of the prompt; ask without."
                )
            self._prompts[index] = (chosen, said.get(PROMPT_TOP_LOGPROBS) or [None] * len(chosen))
        if ids and self._kept is not None:
            if len(chosen := said.get(LOG_PROBS) or ()) < len(ids):
                raise InvalidArgument("best_of: the engine of this model gives no log probabilities; send n alone.")
            total, count = self._sums.get(index, (0.0, 0))
            self._sums[index] = (total + sum(map(float, chosen[: len(ids)])), count + len(ids))

    def best(self, choices: Sequence[Choice], prompts: int) -> list[Choice]:
        """Return the choices that are told, per prompt the likeliest first."""
        if self._kept is None:
            return list(choices)
        per_prompt = len(choices) // prompts
        answers: list[Choice] = []
        for at in range(0, len(choices), per_prompt):
            ranked = sorted(choices[at : at + per_prompt], key=self._likelihood, reverse=True)
            answers += ranked[: self._kept]
        return answers

    def add(self, bodies: list[dict[str, Any]], answers: Sequence[Choice], options: ResponseOptions) -> dict[str, Any]:
        """Add the prompts' to the choices, which it numbers anew; return what a chat has beside its choices."""
        for index, (body, choice) in enumerate(zip(bodies, answers, strict=True)):
            body["index"] = index
            if self._top is not None and not options.chat:
                body[PROMPT_LOGPROBS] = self._prompt(choice.index, options)
        if self._top is None or not options.chat:
            return {}
        return {PROMPT_LOGPROBS: self._prompt(answers[0].index, options)}

    def _likelihood(self, choice: Choice) -> float:
        total, count = self._sums.get(choice.index, (0.0, 0))
        return total / count if count else _UNLIKELIEST

    def _prompt(self, index: int, options: ResponseOptions) -> list[dict[str, Any] | None]:
        chosen, tops = self._prompts[index]
        tokenizer, top = options.tokenizer, self._top
        assert tokenizer is not None
        assert top is not None
        rows: list[dict[str, Any] | None] = []
        for token, logprob, others in zip(options.prompt_ids[index], chosen, tops, strict=False):
            rows.append(None if logprob is None else _row(tokenizer, token, float(logprob), (others or [])[:top]))
        return rows


def _row(tokenizer: Tokenizer, token: int, logprob: float, others: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return one token of a prompt and those that were likelier; the rank of one further down isn't known."""
    row: dict[str, Any] = {}
    for rank, (other, score) in enumerate(others, 1):
        row[str(int(other))] = _entry(tokenizer, int(other), float(score), rank)
    if str(token) not in row:
        row[str(token)] = _entry(tokenizer, token, logprob, None)
    return row


def _entry(tokenizer: Tokenizer, token: int, logprob: float, rank: int | None) -> dict[str, Any]:
    text = tokenizer.token_bytes(token).decode("utf-8", "replace")
    return {"logprob": logprob, "rank": rank, "decoded_token": text}


def scored(request: Sampling, body: dict[str, Any]) -> tuple[Scores, dict[str, Any]] | None:
    """Return what collects them, and the body that asks an engine for them; None where nothing was asked."""
    kept = request.n or 1
    more = request.best_of is not None and request.best_of > kept
    if not more and request.prompt_logprobs is None:
        return None
    if more:
        body = {**body, "n": request.best_of}
        if isinstance(request, ChatRequest):
            body["logprobs"] = True
        elif body.get("logprobs") is None:
            body["logprobs"] = 0
    return Scores(request.prompt_logprobs, kept if more else None), body


def refuse_of_text(request: Sampling) -> None:
    """Raise the 400 of an engine that takes text, for what needs tokens."""
    if isinstance(request, CompletionRequest) and request.suffix:
        raise bad_request("suffix: this model's engine takes text.", "suffix", "unsupported_parameter")
    if request.nvext is not None and request.nvext.token_data is not None:
        name = "nvext.token_data"
        raise bad_request(f"{name}: this model's engine takes text.", name, "unsupported_parameter")
    if request.return_token_ids:
        text = "return_token_ids: this model's engine takes text, and tells no tokens."
        raise bad_request(text, "return_token_ids", "unsupported_parameter")
    if request.prompt_logprobs is not None:
        raise _unsupported("prompt_logprobs")
    if request.best_of is not None and request.best_of > (request.n or 1):
        raise _unsupported("best_of")


def _unsupported(name: str) -> ApiError:
    text = f"{name}: this model's engine takes text and gives no log probabilities."
    return bad_request(text, name, "unsupported_parameter")
