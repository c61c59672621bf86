"""vLLM's outputs, made by its own classes, as our deltas."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput

from dynamo.llm.protocols import (
    EOS,
    LENGTH,
    STOP,
    OutputOptions,
    PreprocessedRequest,
    StopConditions,
)
from dynamo.runtime.errors import EngineError, EngineShutdown
from dynamo.worker.engines.vllm.requests import OutputReader, VllmOutput


def asked(logprobs: int | None = None) -> PreprocessedRequest:
    return PreprocessedRequest(
        model="m", token_ids=[1, 2], eos_token_ids=[7], stop_conditions=StopConditions(stop_token_ids=[8]),
        output_options=OutputOptions(logprobs=logprobs),
    )  # fmt: skip


def output(ids: list[int], reason: str | None = None, stop: Any = None, **more: Any) -> RequestOutput:
    logprobs = more.pop("logprobs", None)
    made = CompletionOutput(0, "", ids, None, logprobs, finish_reason=reason, stop_reason=stop)
    return RequestOutput("1", None, [1, 2], more.pop("prompt_logprobs", None), [made], reason is not None, **more)


def test_only_the_first_says_what_was_cached() -> None:
    reader = OutputReader(asked())
    assert reader.read(output([3], num_cached_tokens=1)) == VllmOutput([3], {"cached_tokens": 1}, None, None, None)
    assert reader.read(output([4, 5], num_cached_tokens=1)) == VllmOutput([4, 5], None, None, None, None)


@pytest.mark.parametrize(
    ("reason", "stop", "finish", "ending"),
    [
        ("length", None, LENGTH, None),
        ("stop", 7, EOS, None),
        ("stop", None, EOS, None),
        ("stop", 8, STOP, {"stop_reason": 8}),
        ("repetition", "repetition_detected", STOP, None),
    ],
)
def test_ends(reason: str, stop: Any, finish: str, ending: dict[str, Any] | None) -> None:
    assert OutputReader(asked()).read(output([3], reason, stop)) == VllmOutput([3], None, finish, ending, None)


@pytest.mark.parametrize(("reason", "kind"), [("abort", EngineShutdown), ("error", EngineError)])
def test_bad_ends(reason: str, kind: type[Exception]) -> None:
    """An abort that we didn't ask for: another worker may go on."""
    piece = OutputReader(asked()).read(output([], reason))
    assert piece.finish is None
    assert isinstance(piece.error, kind)


def test_log_probabilities() -> None:
    """The chosen one's, and the best of all, of which the chosen need not be one."""
    told = [{3: Logprob(-2.0, rank=5), 9: Logprob(-0.5, rank=1), 4: Logprob(-0.75, rank=2)}]
    first = [None, {2: Logprob(-0.25, rank=1)}]
    piece = OutputReader(asked(logprobs=2)).read(output([3], logprobs=told, prompt_logprobs=first))
    assert piece.extras == {
        "prompt_logprobs": [None, -0.25], "log_probs": [-2.0], "top_logprobs": [[[9, -0.5], [4, -0.75]]],
    }  # fmt: skip
