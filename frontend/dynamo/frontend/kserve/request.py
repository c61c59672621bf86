"""What a `ModelInferRequest` asks for, as the body of POST /v1/completions. Pure; `service.py` calls it.

The prompt is the tensor `text_input`, as NVIDIA Dynamo has it. Sampling parameters are taken from where clients of
Triton's back ends put them: `parameters`, a tensor `sampling_parameters` of JSON, or a tensor of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.kserve.tensors import Value, inputs, value
from dynamo.frontend.openai.body import check_shape
from dynamo.frontend.openai.request_structs import CompletionRequest

TEXT_INPUT: Final = "text_input"
STREAMING: Final = ("streaming", "stream")
TEXT_OUTPUT: Final = "text_output"
FINISH_REASON: Final = "finish_reason"
OUTPUTS: Final = (TEXT_OUTPUT, FINISH_REASON)
_SAMPLING: Final = "sampling_parameters"
_NO_ECHO: Final = "exclude_input_in_output"
_ALIASES: Final = {"stop_words": "stop", "random_seed": "seed"}
"""Names of TensorRT-LLM's back end."""
_OWN: Final = frozenset({"model", "prompt", "stream", "stream_options", "echo"})
"""Fields that other parts of the request say."""
_UNANSWERED: Final = frozenset({"logprobs", "prompt_logprobs"})
_FIELDS: Final = frozenset(CompletionRequest.__struct_fields__) - _OWN - _UNANSWERED
_TEXTS: Final = frozenset({"user", "guided_regex", "guided_grammar"})
"""Fields that are text, whatever it looks like."""
_TRITON: Final = frozenset({
    "sequence_id", "sequence_start", "sequence_end", "priority", "binary_data_output",
    "triton_enable_empty_final_response",
})  # fmt: skip
"""Parameters that Triton's client sends and that ask for nothing here."""
_TIMEOUT: Final = "timeout"
_MICROSECONDS: Final = 1e6
MOST_TENSORS: Final = 128
"""Inputs, and parameters, of a request: more than there are names."""
LONGEST_JSON: Final = 64 << 10
"""Characters of sampling parameters as JSON."""


class Asked(msgspec.Struct):
    """A request that was understood."""

    id: str
    stream: bool
    outputs: tuple[str, ...]
    """Names of the tensors to answer with."""
    body: dict[str, Any]
    """Of POST /v1/completions."""
    seconds: float | None
    """The time limit of its own `timeout` parameter."""


def read(request: Any) -> Asked:
    """Understand a `ModelInferRequest`; `ApiError` says what is wrong with it."""
    tensors = _tensors(request)
    text = tensors.pop(TEXT_INPUT, None)
    if text is None:
        raise bad_request(f"{TEXT_INPUT}: this input is required.", TEXT_INPUT, "missing_required_parameter")
    given = _parameters(request.parameters)
    limit = given.pop(_TIMEOUT, None)
    body = given | _from_json(tensors.pop(_SAMPLING, None))
    streams = [_flag(name, source.pop(name)) for source in (body, tensors) for name in STREAMING if name in source]
    echoes = [not _flag(_NO_ECHO, source.pop(_NO_ECHO)) for source in (body, tensors) if _NO_ECHO in source]
    body |= tensors
    _refuse(body)
    body |= {"model": request.model_name, "prompt": text, "stream": bool(streams and streams[-1])}
    if echoes and echoes[-1]:
        body["echo"] = True
    if body["stream"] and (body.get("n") or 1) != 1:
        raise bad_request("n: a stream has one answer; ask without streaming, or n times.", "n")
    return Asked(request.id, body["stream"], _outputs(request), body, _seconds(limit))


def _tensors(request: Any) -> dict[str, Value]:
    """Return the inputs by name, sampling parameters under ours."""
    tensors: dict[str, Value] = {}
    if len(request.inputs) > MOST_TENSORS:
        raise bad_request(f"inputs: {len(request.inputs)} tensors, but at most {MOST_TENSORS} are taken.", "inputs")
    for tensor, packed in inputs(request):
        name = _ALIASES.get(tensor.name, tensor.name)
        if name in (TEXT_INPUT, _SAMPLING):
            content = value(tensor, packed, ("BYTES",))
        elif name in (*STREAMING, _NO_ECHO):
            content = value(tensor, packed, ("BOOL",))
        elif name in _FIELDS:
            content = value(tensor, packed)
            content = _parsed(name, content) if isinstance(content, str) else content
        else:
            known = f"{TEXT_INPUT}, {', '.join(STREAMING)}, {_SAMPLING}, {_NO_ECHO}"
            raise bad_request(
                f"{tensor.name}: there is no such input; known are {known} and sampling parameters by name.",
                tensor.name,
            )
        if name in tensors:
            raise bad_request(f"{tensor.name}: this input is given twice.", tensor.name)
        tensors[name] = content
    return tensors


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if len(given) > MOST_TENSORS:
        raise bad_request(f"parameters: {len(given)}, but at most {MOST_TENSORS} are taken.", "parameters")
    for key, parameter in given.items():
        kind = parameter.WhichOneof("parameter_choice")
        if key in _TRITON or kind is None:
            continue
        content = getattr(parameter, kind)
        name = _ALIASES.get(key, key)
        parameters[name] = _parsed(name, content) if isinstance(content, str) else content
    return parameters


def _parsed(name: str, text: str) -> Any:
    """Return a parameter that is written as text: JSON where its field isn't text itself."""
    if name in _TEXTS or (name == "stop" and not text.startswith("[")):
        return text
    try:
        return _decoded(name, text)
    except (msgspec.DecodeError, RecursionError):
        return text  # what reads it says what was expected


def _decoded(name: str, text: str) -> Any:
    """Decode JSON in a text; it is read on the event loop, so it is small."""
    if len(text) > LONGEST_JSON:
        raise bad_request(f"{name}: {len(text)} characters, but at most {LONGEST_JSON} are taken here.", name)
    raw = text.encode()
    check_shape(raw)
    return msgspec.json.decode(raw)


def _from_json(text: Any) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        decoded = _decoded(_SAMPLING, text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"{_SAMPLING}: this is no JSON: {error}.", _SAMPLING) from None
    if not isinstance(decoded, dict):
        raise bad_request(f"{_SAMPLING}: expected a JSON object.", _SAMPLING)
    return decoded


def _flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise bad_request(f"{name}: expected true or false, got {shown(given)}.", name)
    return given


def _refuse(body: dict[str, Any]) -> None:
    for name in sorted(_OWN & body.keys()):
        raise bad_request(f"{name}: this is no parameter; model_name and the inputs say it.", name)
    for name in sorted(_UNANSWERED & body.keys()):
        if body[name] is None:
            continue
        text = f"{name}: there are no log probabilities over gRPC; ask POST /v1/completions."
        raise bad_request(text, name, "unsupported_parameter")


def _outputs(request: Any) -> tuple[str, ...]:
    wanted = [output.name for output in request.outputs]
    for name in wanted:
        if name not in OUTPUTS:
            raise bad_request(f"{name}: there is no such output; there are {' and '.join(OUTPUTS)}.", name)
    return tuple(name for name in OUTPUTS if name in wanted or not wanted)


def _seconds(limit: Any) -> float | None:
    """Return the time limit of a `timeout` parameter, which is in microseconds; 0 is none, as in Triton."""
    if limit is None or limit == 0:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise _timeout(limit)
    return limit / _MICROSECONDS


def _timeout(limit: Any) -> ApiError:
    return bad_request(f"{_TIMEOUT}: expected microseconds, got {shown(limit)}.", _TIMEOUT)
