"""What vLLM is asked and what its outputs say. Pure; `engine.py` is the shell.

Where a stream ends is decided by the ids that the request names: vLLM's own knowledge of the model's EOS ids is turned
off, since frontend and engine must agree.

Prompts go from one vLLM to another (`--role prefill`, `--role decode`) by vLLM's connector (NIXL unless the engine
arguments name another), which moves the blocks. We carry its words: a prefill worker answers with where its blocks are,
the frontend hands that to the decode worker with the request, and blocks that nobody fetches are free again after the
connector's own time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    DISAGGREGATED_PARAMS,
    EOS,
    LENGTH,
    LOG_PROBS,
    PROMPT_LOGPROBS,
    PROMPT_TOKENS,
    SAMPLING_FIELDS,
    STOP,
    STOP_REASON,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import DynamoException, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engine import GUIDED
from dynamo.worker.engines.support.sampling import sampling_of

CONFIG: Final = "kv_transfer_config"
_PARAMS: Final = "kv_transfer_params"
_FITTING: Final = {
    "aggregated": ("kv_both",),
    "prefill": ("kv_both", "kv_producer"),
    "decode": ("kv_both", "kv_consumer"),
}
_NIXL: Final = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
"""A decode worker that can't fetch a prompt computes it."""


def transfer_config(role: str, given: Any) -> Any:
    """Return vLLM's `kv_transfer_config` for a role, given the user's; `InvalidArgument` where they don't fit."""
    if given is None:
        return None if role == "aggregated" else dict(_NIXL)
    theirs = given.get("kv_role") if isinstance(given, Mapping) else None
    if theirs is not None and theirs not in _FITTING[role]:
        raise InvalidArgument(
            f"vLLM argument {CONFIG!r} with kv_role {theirs!r} does not fit --role {role}, which takes"
            f" {' or '.join(_FITTING[role])}"
        )
    return given


def needs_nixl(role: str, given: Mapping[str, Any]) -> bool:
    """Tell whether the role's own connector is meant, given the engine arguments by vLLM's names."""
    return role != "aggregated" and given.get(CONFIG) is None


def asked(role: str, request: PreprocessedRequest) -> dict[str, Any] | None:
    """Return the extra arguments of a request's sampling parameters; None: its prompt is nobody else's affair."""
    if role == "prefill":
        return {_PARAMS: {"do_remote_decode": True, "do_remote_prefill": False}}
    if role == "decode" and request.prefill_result is not None:
        params = request.prefill_result.disaggregated_params.get(_PARAMS)
        if not isinstance(params, dict):
            raise InvalidArgument(f"the prefill worker's answer has no {_PARAMS}: is it vLLM, too?")
        return {_PARAMS: params}
    return None


def handed_over(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return our extras of what vLLM says at a request's end; empty where nothing is kept for anybody."""
    if not params or not params.get("do_remote_prefill"):
        return {}
    return {DISAGGREGATED_PARAMS: {_PARAMS: dict(params)}}


_WHITESPACE: Final = "whitespace_pattern"
_BACKEND: Final = "backend"
"""Named by older clients; vLLM has chosen it itself since 0.12, and all of them obey the constraint."""


def own_defaults(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a model's generation configuration stands in for what a request leaves open."""
    return {name: value for name in SAMPLING_FIELDS if (value := generation.get(name)) is not None}


def sampling(
    request: PreprocessedRequest, room: int, defaults: Mapping[str, Any], role: str = "aggregated"
) -> dict[str, Any]:
    """Return the arguments of vLLM's `SamplingParams`, without constraints."""
    conditions, options, output = request.stop_conditions, request.sampling_options, request.output_options
    longest = room if conditions.max_tokens is None else min(conditions.max_tokens, room)
    given = sampling_of(EngineName.VLLM, options)
    arguments: dict[str, Any] = {
        **defaults, **given, "max_tokens": longest, "min_tokens": min(conditions.min_tokens or 0, longest),
        "ignore_eos": True, "stop_token_ids": [*_eos_ids(request), *conditions.stop_token_ids],
        "logprobs": output.logprobs, "prompt_logprobs": output.prompt_logprobs, "detokenize": False,
    }  # fmt: skip
    if (handing := asked(role, request)) is not None:
        arguments["extra_args"] = handing
    if options.bad_words:
        arguments["bad_words"] = options.bad_words
    if options.logit_bias:
        arguments["logit_bias"] = {_token_id(token): bias for token, bias in options.logit_bias.items()}
    return arguments


def constraint(request: PreprocessedRequest) -> dict[str, Any] | None:
    """Return the arguments of vLLM's `StructuredOutputsParams`; None where the answer is free."""
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


class ImagesLost(EngineError):  # noqa: N818 - what it is, not that it is one
    """Error: vLLM's core lacks images that its client took for sent, and so sent by name: they must be sent whole.

    Client and core keep one cache each. They differ once a request that was prepared never reached the core: it was
    cancelled meanwhile, or refused.
    """


class VllmOutput(NamedTuple):
    """Addition of one output, and the end where it is the last."""

    ids: list[int]
    extras: dict[str, Any] | None
    finish: str | None
    ending: dict[str, Any] | None
    error: DynamoException | None


class OutputReader:
    """Reads one request's outputs (vLLM's `RequestOutput`, in deltas) into pieces.

    `resends`: where vLLM fails on images before it answers, it is asked once more (`ImagesLost`).
    """

    def __init__(self, request: PreprocessedRequest, *, resends: bool = False) -> None:
        self._stops = frozenset(request.stop_conditions.stop_token_ids)
        self._logprobs = request.output_options.logprobs
        self._answered = request.answered_tokens if request.images else None
        self._first, self._resends = True, resends and bool(request.images)

    def read(self, output: Any) -> VllmOutput:
        """Return what `output` adds."""
        made = output.outputs[0]
        ids = list(made.token_ids)
        extras: dict[str, Any] = self._of_prompt(output) if self._first else {}
        self._first, self._resends = False, self._resends and not ids
        if made.logprobs and self._logprobs is not None:
            extras |= logprobs_of(ids, made.logprobs, self._logprobs)
        finish, ending, error = self._end(made.finish_reason, made.stop_reason)
        if finish is not None and (kept := handed_over(output.kv_transfer_params)):
            ending = {**(ending or {}), **kept}
        return VllmOutput(ids, extras or None, finish, ending, error)

    def _of_prompt(self, output: Any) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if output.num_cached_tokens is not None:
            extras[CACHED_TOKENS] = output.num_cached_tokens
        if self._answered is not None:  # vLLM has put the images' tokens in
            extras[PROMPT_TOKENS] = len(output.prompt_token_ids) - self._answered
        if output.prompt_logprobs:
            pairs = zip(output.prompt_token_ids, output.prompt_logprobs, strict=False)
            extras[PROMPT_LOGPROBS] = [None if at is None else at[token].logprob for token, at in pairs]
        return extras

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
            kind = ImagesLost if self._resends else EngineError
            return None, None, kind("vLLM failed on this request; its own lines say why")
        if stop in self._stops:
            return STOP, {STOP_REASON: stop}, None
        return (EOS, None, None) if stop is None or isinstance(stop, int) else (STOP, None, None)


def logprobs_of(ids: list[int], per_token: Any, wanted: int) -> dict[str, Any]:
    """Return vLLM's candidates per token as our extras: the chosen one's, and the best `wanted`, best first."""
    tops = []
    for candidates in per_token:
        best = sorted(candidates.items(), key=lambda entry: entry[1].rank or 1 << 31)
        tops.append([[token, entry.logprob] for token, entry in best[:wanted]])
    chosen = [candidates[token].logprob for token, candidates in zip(ids, per_token, strict=False)]
    return {LOG_PROBS: chosen, TOP_LOGPROBS: tops}
