"""Requests as they are read: where parameters may stand, and what is refused, with the field in the sentence."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dynamo.frontend.errors import ApiError
from dynamo.frontend.kserve.inference_pb2 import ModelInferRequest
from dynamo.frontend.kserve.request import read
from dynamo.frontend.kserve.response import piece
from dynamo.frontend.kserve.status_codes import code_of, refusal_of
from dynamo.frontend.openai.requests import read_completion


def request(text: str | None = "hi", **fields: Any) -> Any:
    """A request with a prompt."""
    made = ModelInferRequest(model_name="m", **fields)
    if text is not None:
        add(made, "text_input", "BYTES", bytes_contents=[text.encode()])
    return made


def add(made: Any, name: str, datatype: str, shape: tuple[int, ...] = (1,), **contents: Any) -> Any:
    """Another input."""
    made.inputs.add(name=name, datatype=datatype, shape=shape, contents=contents)
    return made


def with_parameters(**parameters: Any) -> Any:
    made = request()
    kinds: dict[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(made.parameters[name], kinds[type(value)], value)
    return made


def test_a_prompt_alone() -> None:
    """Everything else is /v1/completions' default; both outputs come."""
    asked = read(request(id="7"))
    assert asked.body == {"model": "m", "prompt": "hi", "stream": False}
    assert (asked.id, asked.stream, asked.outputs, asked.seconds) == (
        "7",
        False,
        ("text_output", "finish_reason"),
        None,
    )


def test_packed_inputs() -> None:
    """As Triton's client sends them: all elements in `raw_input_contents`, text after its length."""
    made = ModelInferRequest(model_name="m", raw_input_contents=[struct.pack("<I", 2) + b"hi", b"\x01"])
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    made.inputs.add(name="stream", datatype="BOOL", shape=[1])
    asked = read(made)
    assert (asked.body["prompt"], asked.stream) == ("hi", True)


def test_where_parameters_may_stand() -> None:
    """As parameters, as JSON in a tensor, as tensors; what is nearest to the prompt wins."""
    made = with_parameters(max_tokens=5, temperature="0.5", stop='["a", "b"]', top_p=0.25, seed=1, user="7", priority=3)
    add(made, "sampling_parameters", "BYTES", bytes_contents=[b'{"temperature": 0.75, "min_tokens": 2, "seed": 2}'])
    add(made, "random_seed", "UINT64", uint64_contents=[3])
    add(made, "top_k", "INT32", (1, 1), int_contents=[4])
    add(made, "stop_words", "BYTES", bytes_contents=[b"c"])
    body = read(made).body
    assert body == {
        "model": "m", "prompt": "hi", "stream": False, "max_tokens": 5, "temperature": 0.75, "top_p": 0.25, "seed": 3,
        "user": "7", "min_tokens": 2, "top_k": 4, "stop": "c",
    }  # fmt: skip
    assert read_completion(body).seed == 3


def test_what_triton_does_by_parameters() -> None:
    """Its client's time limit in microseconds is one; its other parameters ask for nothing here."""
    asked = read(with_parameters(timeout=1_500_000, sequence_id=4, triton_enable_empty_final_response=True))
    assert (asked.seconds, set(asked.body)) == (1.5, {"model", "prompt", "stream"})
    assert read(with_parameters(timeout=0)).seconds is None


def test_the_prompt_before_the_answer() -> None:
    """Triton's vLLM back end says so by `exclude_input_in_output`; without it, as in NVIDIA Dynamo, it isn't there."""
    assert read(add(request(), "exclude_input_in_output", "BOOL", bool_contents=[False])).body["echo"] is True
    assert "echo" not in read(add(request(), "exclude_input_in_output", "BOOL", bool_contents=[True])).body


def test_outputs_that_are_wanted() -> None:
    """Those alone come."""
    assert read(request(outputs=[{"name": "text_output"}])).outputs == ("text_output",)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (request(None), "text_input: this input is required"),
        (add(request(None), "text_input", "INT32", int_contents=[1]), "text_input: expected datatype BYTES, got INT32"),
        (add(request(None), "text_input", "BYTES", (2,), bytes_contents=[b"a", b"b"]), "expected shape [1], got [2]"),
        (add(request(None), "text_input", "BYTES"), "expected one element in contents.bytes_contents, got 0"),
        (
            add(request(None), "text_input", "BYTES", bytes_contents=[b"\xff"]),
            "text_input: the text is not valid UTF-8",
        ),
        (add(request(), "text_input", "BYTES", bytes_contents=[b"a"]), "text_input: this input is given twice"),
        (add(request(), "streaming", "BYTES", bytes_contents=[b"1"]), "streaming: expected datatype BOOL"),
        (
            add(request(), "image", "BYTES", bytes_contents=[b"1"]),
            "image: there is no such input; known are text_input",
        ),
        (add(request(), "top_p", "FP16"), "top_p: expected one element in raw_input_contents"),
        (add(request(), "sampling_parameters", "BYTES", bytes_contents=[b"{"]), "this is no JSON"),
        (add(request(), "sampling_parameters", "BYTES", bytes_contents=[b"[]"]), "expected a JSON object"),
        (request(raw_input_contents=[b"", b""]), "raw_input_contents: 2 for 1 inputs"),
        (request(raw_input_contents=[b"\x09\0\0\0hi"]), "text_input: expected one raw element"),
        (request(outputs=[{"name": "logits"}]), "logits: there is no such output"),
        (with_parameters(prompt="x"), "prompt: this is no parameter"),
        (with_parameters(logprobs=2), "logprobs: there are no log probabilities over gRPC"),
        (with_parameters(stream="yes"), "stream: expected true or false"),
        (with_parameters(stream=True, n=2), "n: a stream has one answer"),
        (with_parameters(timeout="soon"), "timeout: expected microseconds"),
    ],
)
def test_what_is_refused(made: Any, says: str) -> None:
    """Each mistake in one sentence."""
    with pytest.raises(ApiError) as caught:
        read(made)
    assert says in caught.value.message
    assert caught.value.status == 400


def test_statuses() -> None:
    """Too much work is told from no worker; what has no row is the client's or ours by its number."""
    assert code_of(503, "no_instances") == "UNAVAILABLE"
    assert code_of(503, "queue_full") == "RESOURCE_EXHAUSTED"
    assert [code_of(status) for status in (400, 404, 422, 429, 500, 504)] == [
        "INVALID_ARGUMENT", "NOT_FOUND", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED",
    ]  # fmt: skip
    said = refusal_of(404, b'{"error": {"message": "no", "code": "model_not_found"}}')
    assert (said.code, said.message) == ("NOT_FOUND", "no")
    assert refusal_of(502, b"<html>").message == "the frontend answered 502"


def test_events_put_together() -> None:
    """What a slow client's write holds is one message; an error in mid-answer is its message."""
    events = b"".join(
        b'data: {"choices": [{"text": "%b", "finish_reason": %b}]}\n\n' % entry
        for entry in ((b"a", b"null"), (b"b", b'"stop"'))
    )
    read_piece = piece(events + b"data: [DONE]\n\n")
    assert (read_piece.text, read_piece.finish_reason, read_piece.error) == ("ab", "stop", "")
    assert piece(b'data: {"error": {"message": "gone"}}\n\n').error == "gone"
