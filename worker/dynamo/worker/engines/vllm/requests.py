"""What vLLM is asked and what its outputs say. Pure; `vllm.py` is the shell.

Where a stream ends is decided by the ids that the request names: vLLM's own knowledge of the model's EOS ids is turned
off, since frontend and engine must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dynamo.llm.protocols import (
    CACHED_TOKENS,
    EOS,
    LENGTH,
    LOG_PROBS,
    PROMPT_LOGPROBS,
    STOP,
    STOP_REASON,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import DynamoException, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engine import GUIDED
from dynamo.worker.engines.vllm_handing import asked, handed_over

_SAMPLING: Final = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "seed",
)  # fmt: skip
_WHITESPACE: Final = "whitespace_pattern"
_BACKEND: Final = "backend"
"""Named by older clients; vLLM has chosen it itself since 0.12, and all of them obey the constraint."""


def own_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model's generation configuration stands in for what a request leaves open."""
    return {name: value for name in _SAMPLING if (value := generation.get(name)) is not None}


def sampling(
    request: PreprocessedRequest, room: int, defaults: Mapping[str, Any], role: str = "aggregated"
) -> dict[str, Any]:
    """The arguments of vLLM's `SamplingParams`, without constraints."""
    conditions, options, output = request.stop_conditions, request.sampling_options, request.output_options
    longest = room if conditions.max_tokens is None else min(conditions.max_tokens, room)
    given = {name: value for name in _SAMPLING if (value := getattr(options, name)) is not None}
    found: dict[str, Any] = {
        **defaults, **given, "max_tokens": longest, "min_tokens": min(conditions.min_tokens or 0, longest),
        "ignore_eos": True, "stop_token_ids": [*_eos_ids(request), *conditions.stop_token_ids],
        "logprobs": output.logprobs, "prompt_logprobs": output.prompt_logprobs, "detokenize": False,
    }  # fmt: skip
    if (handing := asked(role, request)) is not None:
        found["extra_args"] = handing
    if options.logit_bias:
        found["logit_bias"] = {_token_id(token): bias for token, bias in options.logit_bias.items()}
    return found


def constraint(request: PreprocessedRequest) -> dict[str, Any] | None:
    """The arguments of vLLM's `StructuredOutputsParams`; None where the answer is free."""
    guided = request.sampling_options.guided_decoding
    if not guided:
        return None
    if wrong := sorted(guided.keys() - {*GUIDED, _WHITESPACE, _BACKEND}):
        raise InvalidArgument(f"guided_{wrong[0]}: vLLM is constrained by {', '.join(GUIDED)}")
    kinds = [name for name in GUIDED if guided.get(name) is not None]
    if len(kinds) != 1:
        raise InvalidArgument(f"an answer has one constraint, not {' and '.join(kinds) or 'none'}")
    pattern = guided.get(_WHITESPACE)
    return {kinds[0]: guided[kinds[0]], **({} if pattern is None else {_WHITESPACE: pattern})}


def _eos_ids(request: PreprocessedRequest) -> list[int]:
    return [] if request.stop_conditions.ignore_eos else request.eos_token_ids


def _token_id(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidArgument(f"logit_bias is keyed by token ids, got {text!r}") from error


class Piece(NamedTuple):
    """What one output adds, and the end where it is the last."""

    ids: list[int]
    extras: dict[str, Any] | None
    finish: str | None
    ending: dict[str, Any] | None
    error: DynamoException | None


class OutputReader:
    """Reads one request's outputs (vLLM's `RequestOutput`, in deltas) into pieces."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._stops = frozenset(request.stop_conditions.stop_token_ids)
        self._logprobs = request.output_options.logprobs
        self._first = True

    def read(self, output: Any) -> Piece:
        """Return what `output` adds."""
        made = output.outputs[0]
        ids = list(made.token_ids)
        extras: dict[str, Any] = self._of_prompt(output) if self._first else {}
        self._first = False
        if made.logprobs and self._logprobs is not None:
            extras |= logprobs_of(ids, made.logprobs, self._logprobs)
        finish, ending, error = self._end(made.finish_reason, made.stop_reason)
        if finish is not None and (kept := handed_over(output.kv_transfer_params)):
            ending = {**(ending or {}), **kept}
        return Piece(ids, extras or None, finish, ending, error)

    def _of_prompt(self, output: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if output.num_cached_tokens is not None:
            found[CACHED_TOKENS] = output.num_cached_tokens
        if output.prompt_logprobs:
            pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=False)
            found[PROMPT_LOGPROBS] = [None if at is None else at[token].logprob for token, at in pairs]
        return found

    def _end(
        self, reason: str | None, stop: int | str | None
    ) -> tuple[str | None, dict[str, Any] | None, DynamoException | None]:
        if reason is None:
            return None, None, None
        if reason == "length":
            return LENGTH, None, None
        if reason == "abort":  # by itself: it was told to go, by a signal to all processes of a terminal
            return None, None, EngineShutdown()
        if reason == "error":
            return None, None, EngineError("vLLM failed on this request; its own lines say why")
        if stop in self._stops:
            return STOP, {STOP_REASON: stop}, None
        return (EOS, None, None) if stop is None or isinstance(stop, int) else (STOP, None, None)


def logprobs_of(ids: list[int], told: Any, wanted: int) -> dict[str, Any]:
    """vLLM's candidates per token as our extras: the chosen one's, and the best `wanted`, best first."""
    tops = []
    for candidates in told:
        best = sorted(candidates.items(), key=lambda entry: entry[1].rank or 1 << 31)
        tops.append([[token, entry.logprob] for token, entry in best[:wanted]])
    chosen = [candidates[token].logprob for token, candidates in zip(ids, told, strict=False)]
    return {LOG_PROBS: chosen, TOP_LOGPROBS: tops}
