"""Our requests in SGLang's words, and what it says of them in ours. The shapes are those of sglang 0.5.23.

Two traps of an engine without a tokenizer, which this one is (tokens in, tokens out): `min_new_tokens` kills its
scheduler (SGLang's penalty for it asks the tokenizer for its end), so a floor is a phase of its own in which no end can
be sampled; and `ignore_eos` turns stop token ids off too, so they are looked for here.

As a maker of vectors (`is_embedding`, or a model for them) SGLang takes each input as a request of its own to its
engine, which batches them. Used by `engine.py`, in SGLang's thread."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynamo.engine_catalog import EngineName
from dynamo.llm.processing.embeddings import EmbeddingRequest, packed
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
from dynamo.runtime.errors import CapacityExceeded, DynamoException, EngineError, InvalidArgument
from dynamo.worker.engines.support.open_requests import EngineOutput
from dynamo.worker.engines.support.request_checks import left, stop_reasons
from dynamo.worker.engines.support.sampling import sampling_of

NEVER: Final = -1e9
"""The bias of a token that must not be sampled."""
_BAD_REQUEST, _TOO_MANY, _UNAVAILABLE = 400, 429, 503


class SgLangRequest:
    """One request. SGLang's thread looks at `wanted`, which the worker's loop clears."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: set[str] = set()
        """What it is called by in SGLang, as far as it is under way there; SGLang's thread's own."""
        self.wanted = True


class GenerationPhase(NamedTuple):
    """One call of the engine; each continues with what the ones before produced."""

    max_tokens: int
    endless: bool
    """No end of the model's counts."""
    floor: bool = False
    """No end may be sampled."""


def phases(request: PreprocessedRequest, room: int) -> list[GenerationPhase]:
    """Return how a request is cut; `room` is what the context leaves for the answer, in tokens."""
    conditions = request.stop_conditions
    wanted = left(request, room)
    floor = min(conditions.min_tokens or 0, wanted)
    if floor == 0:
        return [GenerationPhase(wanted, conditions.ignore_eos)]
    rest = [GenerationPhase(wanted - floor, conditions.ignore_eos)] if wanted > floor else []
    return [GenerationPhase(floor, True, floor=True), *rest]


def generate(request: PreprocessedRequest, tokens: Sequence[int], phase: GenerationPhase, name: str) -> dict[str, Any]:
    """Return the arguments of `Engine.async_generate`; raises `InvalidArgument` for what takes a tokenizer."""
    options, wants = request.sampling_options, request.output_options
    if options.guided_decoding:
        raise InvalidArgument("guided decoding needs SGLang's own tokenizer, which is off here: use another engine")
    sampling = sampling_of(EngineName.SGLANG, options)
    sampling |= {"max_new_tokens": phase.max_tokens, "ignore_eos": phase.endless, "no_stop_trim": True}
    bias = dict(options.logit_bias or {})
    if phase.floor:
        bias |= {str(token): NEVER for token in (*request.eos_token_ids, *request.stop_conditions.stop_token_ids)}
    if bias:
        sampling["logit_bias"] = bias
    stops = sorted(stop_reasons(request))
    if stops and not phase.endless:
        sampling["stop_token_ids"] = stops
    made: dict[str, Any] = {"input_ids": list(tokens), "sampling_params": sampling, "stream": True, "rid": name}
    if wants.logprobs is not None or wants.prompt_logprobs is not None:
        made |= {"return_logprob": True, "top_logprobs_num": wants.logprobs or 0}
        if wants.prompt_logprobs is not None:
            made["logprob_start_len"] = 0
    if request.wanted_rank is not None:
        made["routed_dp_rank"] = request.wanted_rank
    if request.bootstrap_info is not None:
        where = request.bootstrap_info
        made |= {"bootstrap_host": where.bootstrap_host, "bootstrap_room": where.bootstrap_room}
        made |= {"bootstrap_port": where.bootstrap_port} if where.bootstrap_port else {}
    return made


class Said(NamedTuple):
    """Meaning of one output of SGLang's."""

    piece: EngineOutput
    over: bool
    """The phase ends with it."""


class OutputReader:
    """Reads the outputs of one request, over all its phases, into pieces."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._request, self._ends = request, stop_reasons(request)
        self._floor = request.stop_conditions.min_tokens or 0
        self._told = False
        self.tokens: list[int] = []
        """Produced so far."""

    def read(self, output: Mapping[str, Any], *, last: bool) -> Said:
        """Read one output of the stream; `last`: of the last phase. Raises what the engine says went wrong."""
        about = output["meta_info"]
        reason = about.get("finish_reason")
        if reason is not None and reason.get("type") == "abort":
            raise error_of(reason)
        ids = list(output["output_ids"])
        cut = self._cut(ids)
        ended = bool(ids) and self._is_end(ids[cut - 1], cut)
        ids = ids[:cut]
        extras = self._extras(about, ids)
        self.tokens += ids
        if ended:
            why = self._ends[ids[-1]]
            return Said(EngineOutput(ids, extras or None, why, {STOP_REASON: ids[-1]} if why == STOP else None), True)
        finish = _finish(reason) if reason is not None and last else None
        return Said(EngineOutput(ids, extras or None, finish), reason is not None)

    def _is_end(self, token: int, position: int) -> bool:
        return token in self._ends and len(self.tokens) + position > self._floor

    def _cut(self, ids: list[int]) -> int:
        """Count the tokens up to the first that ends the answer."""
        return next((at for at, token in enumerate(ids, 1) if self._is_end(token, at)), len(ids))

    def _extras(self, about: Mapping[str, Any], ids: list[int]) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        wants = self._request.output_options
        if not self._told:
            self._told = True
            extras[CACHED_TOKENS] = int(about.get("cached_tokens") or 0)
            if wants.prompt_logprobs is not None and (prompt_logprobs := about.get("input_token_logprobs")):
                extras[PROMPT_LOGPROBS] = [_number(entry[0]) for entry in prompt_logprobs]
        if wants.logprobs is not None and ids:
            extras[LOG_PROBS] = [_number(entry[0]) for entry in about["output_token_logprobs"][: len(ids)]]
            if wants.logprobs:
                tops = about["output_top_logprobs"][: len(ids)]
                extras[TOP_LOGPROBS] = [[[entry[1], _number(entry[0])] for entry in top or ()] for top in tops]
        return extras


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _finish(reason: Mapping[str, Any]) -> str:
    return LENGTH if reason.get("type") == "length" else EOS


def error_of(reason: Mapping[str, Any]) -> DynamoException:
    """Return what an aborted request's finish reason means to its client."""
    message, status = str(reason.get("message") or "aborted"), reason.get("status_code")
    status = int(status) if status is not None else 0
    if status == _BAD_REQUEST:
        return InvalidArgument(message)
    if status in (_TOO_MANY, _UNAVAILABLE) or re.search("queue is full", message):
        return CapacityExceeded(message)
    return EngineError(f"SGLang: {message}")


MOST: Final = 64
"""Inputs of one request that are under way at once."""
Push = Callable[[int, bytes], None]


class Vectors(NamedTuple):
    """Form of an engine's vectors."""

    dimensions: int
    cut: bool
    """They may be cut."""


def vectors_of(config: Any) -> Vectors | None:
    """Return what SGLang's `ModelConfig` says of a model; None: it makes text."""
    return None if config.is_generation else Vectors(int(config.hidden_size), bool(config.is_matryoshka))


async def embed(manager: Any, request: EmbeddingRequest, job: SgLangRequest, push: Push) -> None:
    """Push the vector of every input, asked of SGLang's `TokenizerManager`; ends them all where one fails."""
    inputs = iter(enumerate(request.token_ids))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(MOST, len(request.token_ids))):
                group.create_task(_some(manager, request.dimensions, inputs, job, push))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _some(
    manager: Any, dimensions: int | None, inputs: Iterator[tuple[int, list[int]]], job: SgLangRequest, push: Push
) -> None:
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    for index, ids in inputs:
        if not job.wanted:
            return
        call = f"{job.name}-{index}"
        job.calls.add(call)
        try:
            asked = EmbeddingReqInput(input_ids=ids, rid=call, dimensions=dimensions)
            output = await anext(manager.generate_request(asked, None))
        finally:
            job.calls.discard(call)
        reason = output["meta_info"].get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise error_of(reason)
        push(index, packed(output["embedding"]))
