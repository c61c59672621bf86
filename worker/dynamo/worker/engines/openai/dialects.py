"""How each kind of server is asked, and how its events are read. Pure.

A *tokens* dialect sends token ids and reads token ids, so that routing by KV blocks, exact usage and migration work:
vLLM by `/v1/completions` with `return_token_ids`, SGLang by `/generate`, llama-server by `/completion`. Any other
server is asked in text (`text_requests.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import (
    CACHED_TOKENS,
    EOS,
    LENGTH,
    LOG_PROBS,
    STOP,
    STOP_REASON,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engine import GUIDED
from dynamo.worker.engines.openai.server_faults import UsageReport
from dynamo.worker.engines.support.open_requests import EngineOutput
from dynamo.worker.engines.support.request_checks import left, logit_bias, stop_reasons
from dynamo.worker.engines.support.sampling import sampling_of


class Call(NamedTuple):
    """One request to the server."""

    path: str
    body: dict[str, Any]


class Reader(Protocol):
    """Reader of one answer's events."""

    usage_report: UsageReport | None
    """Counts, once the server has told some at its own end of the answer."""

    def read(self, event: bytes) -> EngineOutput | None:
        """Return what an event adds; None: nothing. Raises what the server says went wrong."""


class Dialect(NamedTuple):
    """One kind of server."""

    name: str
    call: Callable[[PreprocessedRequest, str, int], Call]
    """Takes the request, the model's name there, and the tokens that the context leaves for the answer."""
    reader: Callable[[PreprocessedRequest], Reader]
    guided: tuple[str, ...] = ()
    rest: Callable[[PreprocessedRequest, Sequence[int], int], Call | None] = lambda request, made, room: None
    """Returns the call that goes on after the tokens made so far, where one call can't say all of a request."""
    adapter_field: str = ""
    """Field of a call that names an adapter; empty where the model's name does."""


class _Ends:
    """Decides where an answer ends: frontend and engine must agree, so the request's ids count, not the server's."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._reasons = stop_reasons(request)
        self._floor = request.stop_conditions.min_tokens or 0
        self.made = 0

    def cut(self, ids: list[int]) -> tuple[list[int], str | None, dict[str, Any] | None]:
        """Return the tokens up to the first that ends the answer, with the reason and its extras."""
        for position, token in enumerate(ids, 1):
            reason = self._reasons.get(token)
            if reason is not None and self.made + position > self._floor:
                self.made += position
                return ids[:position], reason, {STOP_REASON: token} if reason == STOP else None
        self.made += len(ids)
        return ids, None, None


def fault(event: Mapping[str, Any]) -> EngineError | InvalidArgument | None:
    """Return the error that an event holds, if it holds one."""
    error = event.get("error")
    if error is None:
        return None
    message = error.get("message") if isinstance(error, dict) else error
    code = error.get("code") if isinstance(error, dict) else None
    text = str(message or "it does not say what went wrong")[:1000]
    return InvalidArgument(text) if code == 400 else EngineError(f"the server: {text}")


# -- vLLM


class _VllmChoice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: dict[str, Any] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _VllmEvent(msgspec.Struct):
    choices: list[_VllmChoice] = []
    usage: _Usage | None = None
    error: Any = None


_VLLM: Final = msgspec.json.Decoder(_VllmEvent)
_BY_ID: Final = "token_id:"


def _vllm_call(request: PreprocessedRequest, model: str, room: int) -> Call:
    conditions, output = request.stop_conditions, request.output_options
    longest = left(request, room)
    body: dict[str, Any] = {
        "model": model, "prompt": request.token_ids, "stream": True, "max_tokens": longest,
        "return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True, "add_special_tokens": False,
        "min_tokens": min(conditions.min_tokens or 0, longest), "skip_special_tokens": False,
        "stream_options": {"include_usage": True},
        **sampling_of(EngineName.VLLM, request.sampling_options),
    }  # fmt: skip
    if stops := sorted(stop_reasons(request)):
        body["stop_token_ids"] = stops
    if output.logprobs is not None:
        body["logprobs"] = output.logprobs
    if bias := logit_bias(request):
        body["logit_bias"] = {str(token): value for token, value in bias.items()}
    if guided := request.sampling_options.guided_decoding:
        body["structured_outputs"] = guided
    return Call("/v1/completions", body)


class _VllmReader:
    """Reads vLLM's chunks. The last one, which has the counts, comes after the end: what is cached is told there."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._ends, self._top = _Ends(request), request.output_options.logprobs
        self._end: EngineOutput | None = None
        self.usage_report: UsageReport | None = None

    def read(self, event: bytes) -> EngineOutput | None:
        chunk = _VLLM.decode(event)
        if chunk.error is not None:
            raise fault(msgspec.json.decode(event)) or EngineError("the server: it does not say what went wrong")
        if not chunk.choices:
            return self._counted(chunk.usage)
        choice = chunk.choices[0]
        if choice.token_ids is None:
            raise EngineError("the server names no token ids: it needs vLLM 0.10.2 or later, or leave the model's path")
        ids, finish, ending = self._ends.cut(choice.token_ids)
        extras = None
        if ids and choice.logprobs and self._top is not None:
            extras = _vllm_logprobs(choice.logprobs, len(ids), self._top)
        if finish is None and choice.finish_reason is not None:
            finish = LENGTH if choice.finish_reason == "length" else EOS
        if finish is None:
            return EngineOutput(ids, extras, None)
        self._end = EngineOutput([], None, finish, ending)
        return EngineOutput(ids, extras, None) if ids else None

    def _counted(self, usage: _Usage | None) -> EngineOutput | None:
        if self._end is None:
            return None
        if usage is not None:
            self.usage_report = UsageReport(usage.prompt_tokens, usage.completion_tokens, self._ends.made)
        details = usage.prompt_tokens_details if usage is not None else None
        if details is None or details.cached_tokens is None:
            return self._end
        return self._end._replace(ending={**(self._end.ending or {}), CACHED_TOKENS: details.cached_tokens})


def _vllm_logprobs(logprobs: Mapping[str, Any], count: int, top: int) -> dict[str, Any]:
    extras: dict[str, Any] = {LOG_PROBS: list(logprobs.get("token_logprobs") or [])[:count]}
    if top:
        tops = list(logprobs.get("top_logprobs") or [])[:count]
        extras[TOP_LOGPROBS] = [_best(candidates or {}, top) for candidates in tops]
    return extras


def _best(candidates: Mapping[str, float], most: int) -> list[list[Any]]:
    pairs = [
        [int(token.removeprefix(_BY_ID)), value] for token, value in candidates.items() if token.startswith(_BY_ID)
    ]
    return sorted(pairs, key=lambda pair: -float(pair[1]))[:most]


# -- SGLang


class _SgLangReader:
    """Reads what `/generate` streams, whose ids are all so far or those of a step, as the server was started."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._ends, self._seen, self._cached = _Ends(request), 0, False
        self.usage_report: UsageReport | None = None

    def read(self, event: bytes) -> EngineOutput | None:
        data: dict[str, Any] = msgspec.json.decode(event)
        if (error := fault(data)) is not None:
            raise error
        about = data.get("meta_info") or {}
        ids = list(data.get("output_ids") or [])
        total = int(about.get("completion_tokens") or len(ids))
        fresh = ids[self._seen :] if len(ids) == total else ids
        self._seen = total
        reason = about.get("finish_reason") or None
        if reason is not None and reason.get("type") == "abort":
            text = str(reason.get("message") or "aborted")[:1000]
            raise InvalidArgument(text) if reason.get("status_code") == 400 else EngineError(f"the server: {text}")
        kept, finish, ending = self._ends.cut(fresh)
        if finish is None and reason is not None:
            finish = LENGTH if reason.get("type") == "length" else EOS
            self.usage_report = UsageReport(
                _count(about, "prompt_tokens"), _count(about, "completion_tokens"), self._ends.made
            )
        extras = None
        if not self._cached and "cached_tokens" in about:
            self._cached, extras = True, {CACHED_TOKENS: int(about["cached_tokens"] or 0)}
        return EngineOutput(kept, extras, finish, ending)


def _count(about: Mapping[str, Any], name: str) -> int | None:
    value = about.get(name)
    return value if type(value) is int else None


def _sglang_call(request: PreprocessedRequest, model: str, room: int) -> Call:
    _no_logprobs(request, "SGLang")
    sampling = sampling_of(EngineName.SGLANG, request.sampling_options)
    # `ignore_eos` turns stop ids off there, too, so the end is looked for here and the stream left.
    sampling |= {"max_new_tokens": left(request, room), "ignore_eos": True, "no_stop_trim": True}
    if bias := logit_bias(request):
        sampling["logit_bias"] = {str(token): value for token, value in bias.items()}
    return Call("/generate", {"input_ids": request.token_ids, "sampling_params": sampling, "stream": True})


# -- llama-server


class _LlamaEvent(msgspec.Struct):
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    tokens_evaluated: int | None = None
    tokens_predicted: int | None = None
    timings: dict[str, Any] | None = None
    error: Any = None


_LLAMA: Final = msgspec.json.Decoder(_LlamaEvent)


class _LlamaReader:
    """Reads what llama-server's `/completion` streams."""

    def __init__(self, request: PreprocessedRequest) -> None:
        self._ends, self._floor = _Ends(request), _floor(request) > 0
        self._whole = not self._floor
        self.usage_report: UsageReport | None = None

    def read(self, event: bytes) -> EngineOutput | None:
        chunk = _LLAMA.decode(event)
        if chunk.error is not None:
            raise fault(msgspec.json.decode(event)) or EngineError("the server: it does not say what went wrong")
        # The last chunk repeats nothing while it streams, and names the reason.
        ids, finish, ending = self._ends.cut([] if chunk.stop else chunk.tokens)
        if finish is None and chunk.stop:
            if self._floor and chunk.stop_type == "limit":
                self._floor = False
                return None
            finish = LENGTH if chunk.stop_type == "limit" else EOS
        if finish is None:
            return EngineOutput(ids, None, None)
        if chunk.stop and self._whole:  # it counts the model's end, and sends no id for it
            spare = int(finish == EOS)
            self.usage_report = UsageReport(chunk.tokens_evaluated, chunk.tokens_predicted, self._ends.made, spare)
        cached = (chunk.timings or {}).get("cache_n")
        cached_count = {CACHED_TOKENS: cached} if isinstance(cached, int) else {}
        return EngineOutput(ids, None, finish, {**(ending or {}), **cached_count} or None)


def _floor(request: PreprocessedRequest) -> int:
    """Return for how many tokens no end of the model may be sampled; the server has no field for that but a ban."""
    return 0 if request.stop_conditions.ignore_eos else request.stop_conditions.min_tokens or 0


def _llama_call(request: PreprocessedRequest, model: str, room: int) -> Call:
    wanted, floor = left(request, room), _floor(request)
    return _llama(request, request.token_ids, min(wanted, floor) or wanted, floor > 0)


def _llama_rest(request: PreprocessedRequest, made: Sequence[int], room: int) -> Call | None:
    floor, wanted = _floor(request), left(request, room)
    if not floor or len(made) != floor or floor >= wanted:
        return None
    return _llama(request, [*request.token_ids, *made], wanted - floor, False)


def _llama(request: PreprocessedRequest, tokens: list[int], most: int, endless: bool) -> Call:
    _no_logprobs(request, "llama-server")
    options = sampling_of(EngineName.LLAMACPP, request.sampling_options)
    body: dict[str, Any] = {
        "prompt": tokens, "n_predict": most, "stream": True, "return_tokens": True, "cache_prompt": True,
        "ignore_eos": endless or request.stop_conditions.ignore_eos, **options,
    }  # fmt: skip
    if bias := logit_bias(request):
        body["logit_bias"] = [[token, value] for token, value in bias.items()]
    schema = (request.sampling_options.guided_decoding or {}).get("json")
    if schema is not None:
        body["json_schema"] = schema
    return Call("/completion", body)


def _no_logprobs(request: PreprocessedRequest, server: str) -> None:
    if request.output_options.logprobs is not None:
        raise InvalidArgument(f"logprobs: engine openai has none from {server} by token id")


DIALECTS: Final[dict[str, Dialect]] = {
    "vllm": Dialect("vllm", _vllm_call, _VllmReader, GUIDED),
    "sglang": Dialect("sglang", _sglang_call, _SgLangReader, adapter_field="lora_path"),
    "llamacpp": Dialect("llamacpp", _llama_call, _LlamaReader, ("json",), _llama_rest),
}
