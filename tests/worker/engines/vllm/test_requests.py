"""What vLLM is asked, without vLLM: tests_vllm/test_requests.py reads its real outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dynamo.llm.protocols import ImageInput, OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.support.request_checks import room_for
from dynamo.worker.engines.vllm.requests import ImagesLost, OutputReader, constraint, own_defaults, sampling

ALWAYS: dict[str, Any] = {
    "max_tokens": 90, "min_tokens": 0, "ignore_eos": True, "stop_token_ids": [7], "logprobs": None,
    "prompt_logprobs": None, "detokenize": False,
}  # fmt: skip


def request(*, output: OutputOptions | None = None, options: dict[str, Any] | None = None, **stop: Any) -> Any:
    return PreprocessedRequest(
        model="m", token_ids=[1, 2], stop_conditions=StopConditions(**stop), eos_token_ids=[7],
        sampling_options=SamplingOptions(**(options or {})), output_options=output or OutputOptions(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        (request(), {}),
        (request(max_tokens=5, min_tokens=3), {"max_tokens": 5, "min_tokens": 3}),
        (request(max_tokens=5, min_tokens=30), {"max_tokens": 5, "min_tokens": 5}),
        (request(max_tokens=500), {}),
        (request(ignore_eos=True), {"stop_token_ids": []}),
        (request(stop_token_ids=[3]), {"stop_token_ids": [7, 3]}),
        (request(options={"temperature": 0.0, "top_k": 5, "seed": 3}), {"temperature": 0.0, "top_k": 5, "seed": 3}),
        (request(options={"logit_bias": {"5": -1.5}}), {"logit_bias": {5: -1.5}}),
        (request(output=OutputOptions(logprobs=2, prompt_logprobs=0)), {"logprobs": 2, "prompt_logprobs": 0}),
    ],
)
def test_what_is_asked(asked: PreprocessedRequest, fields: dict[str, Any]) -> None:
    assert sampling(asked, 90, {}) == {**ALWAYS, **fields}


def test_the_models_own_defaults_fill_gaps() -> None:
    """As vLLM's own server has it: what the request leaves open is the model's generation configuration's."""
    defaults = own_defaults({"temperature": 0.6, "top_p": 0.9, "max_tokens": 3, "eos_token_id": 5})
    assert defaults == {"temperature": 0.6, "top_p": 0.9}
    arguments = sampling(request(options={"temperature": 0.0}), 90, defaults)
    assert (arguments["temperature"], arguments["top_p"]) == (0.0, 0.9)


def test_bias_for_what_is_no_token_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="keyed by token ids, got 'x'"):
        sampling(request(options={"logit_bias": {"x": 1.0}}), 90, {})


@pytest.mark.parametrize("count", [0, 100, 101])
def test_prompts_that_leave_no_room_are_refused(count: int) -> None:
    asked = request()
    asked.token_ids = [1] * count
    with pytest.raises(InvalidArgument, match=f"{count} tokens: this engine takes 1 to 99"):
        room_for(asked, 100)


def test_room() -> None:
    assert room_for(request(), 100) == 98


@pytest.mark.parametrize(
    ("guided", "fields"),
    [
        (None, None),
        ({}, None),
        ({"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"json": {"type": "object"}, "backend": "xgrammar"}, {"json": {"type": "object"}}),
        ({"regex": "a+", "whitespace_pattern": " "}, {"regex": "a+", "whitespace_pattern": " "}),
    ],
)
def test_constraints(guided: dict[str, Any] | None, fields: dict[str, Any] | None) -> None:
    assert constraint(request(options={"guided_decoding": guided})) == fields


@pytest.mark.parametrize(
    ("guided", "said"),
    [
        ({"jsn": 1}, "guided_jsn"),
        ({"json": {}, "regex": "a"}, "not json and regex"),
        ({"whitespace_pattern": " "}, "not none"),
    ],
)
def test_constraints_that_cant_be_meant_are_refused(guided: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        constraint(request(options={"guided_decoding": guided}))


def output(reason: str | None, *ids: int) -> Any:
    """Return one output of vLLM's, as far as it is read."""
    made = SimpleNamespace(token_ids=ids, logprobs=None, finish_reason=reason, stop_reason=None)
    return SimpleNamespace(
        outputs=[made], num_cached_tokens=None, prompt_token_ids=[1, 2], prompt_logprobs=None, kv_transfer_params=None
    )


@pytest.mark.parametrize(
    ("images", "resends", "made", "lost"),
    [(True, True, (), True), (True, False, (), False), (False, True, (), False), (True, True, (5,), False)],
)
def test_images_that_the_core_lacks_are_sent_once_more(
    images: bool, resends: bool, made: tuple[int, ...], lost: bool
) -> None:
    """Only before there was an answer, and where there are images; any other failure is the request's."""
    image = ImageInput(data=b"x", format="png", digest="0" * 32, width=1, height=1)
    shown = PreprocessedRequest(model="m", token_ids=[1, 2], images=[image] if images else None)
    reader = OutputReader(shown, resends=resends)
    if made:
        reader.read(output(None, *made))
    error = reader.read(output("error")).error
    assert isinstance(error, EngineError)
    assert isinstance(error, ImagesLost) == lost
