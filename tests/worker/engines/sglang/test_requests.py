"""SGLang's words for our requests and ours for its outputs, by table; the shapes are sglang 0.5.23's."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

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
from dynamo.runtime.errors import CapacityExceeded, EngineError, InvalidArgument
from dynamo.worker.engines.sglang.arguments import arguments, argv, kv_events
from dynamo.worker.engines.sglang.engine import _Home
from dynamo.worker.engines.sglang.requests import NEVER, GenerationPhase, OutputReader, error_of, generate, phases
from dynamo.worker.settings import WorkerSettings


def request(**more: Any) -> PreprocessedRequest:
    return msgspec.convert({"model": "m", "token_ids": [1, 2, 3], "eos_token_ids": [9], **more}, PreprocessedRequest)


def output(ids: list[int], reason: dict[str, Any] | None = None, **about: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"finish_reason": reason, "cached_tokens": 2, **about}}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [GenerationPhase(50, False)]),
        ({"max_tokens": 8}, [GenerationPhase(8, False)]),
        ({"max_tokens": 80}, [GenerationPhase(50, False)]),
        ({"max_tokens": 8, "ignore_eos": True}, [GenerationPhase(8, True)]),
        ({"max_tokens": 8, "min_tokens": 3}, [GenerationPhase(3, True, floor=True), GenerationPhase(5, False)]),
        ({"max_tokens": 3, "min_tokens": 8}, [GenerationPhase(3, True, floor=True)]),
        (
            {"max_tokens": 8, "min_tokens": 3, "ignore_eos": True},
            [GenerationPhase(3, True, floor=True), GenerationPhase(5, True)],
        ),
    ],
)
def test_a_floor_is_a_phase_of_its_own(conditions: dict[str, Any], expected: list[GenerationPhase]) -> None:
    """SGLang's own floor needs its tokenizer."""
    assert phases(request(stop_conditions=conditions), 50) == expected


@pytest.mark.parametrize(
    ("given", "sampling"),
    [
        ({}, {"stop_token_ids": [9]}),
        ({"stop_conditions": {"stop_token_ids": [7]}}, {"stop_token_ids": [7, 9]}),
        (
            {"sampling_options": {"temperature": 0.0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "seed": 5}},
            {"temperature": 0.0, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "sampling_seed": 5, "stop_token_ids": [9]},
        ),
        (
            {"sampling_options": {"presence_penalty": 1.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5}},
            {
                "presence_penalty": 1.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5, "stop_token_ids": [9],
            },
        ),
        ({"sampling_options": {"logit_bias": {"4": -5.0}}}, {"logit_bias": {"4": -5.0}, "stop_token_ids": [9]}),
    ],
)  # fmt: skip
def test_sampling_is_said_in_its_words(given: dict[str, Any], sampling: dict[str, Any]) -> None:
    """What is not asked for is left to it; the stop token stays in the output."""
    made = generate(request(**given), [1, 2, 3], GenerationPhase(8, False), "r")
    fixed = {"max_new_tokens": 8, "ignore_eos": False, "no_stop_trim": True}
    assert made == {"input_ids": [1, 2, 3], "sampling_params": fixed | sampling, "stream": True, "rid": "r"}


def test_below_the_floor_no_end_can_be_sampled() -> None:
    """Neither the model's nor the request's."""
    made = generate(
        request(stop_conditions={"min_tokens": 2, "stop_token_ids": [7]}), [1], GenerationPhase(2, True, True), "r"
    )
    sampling = made["sampling_params"]
    assert sampling["logit_bias"] == {"9": NEVER, "7": NEVER}
    assert (sampling["ignore_eos"], "stop_token_ids" in sampling) == (True, False)


def test_what_else_is_wanted() -> None:
    """Log probabilities, a rank, and where both halves of a disaggregated request meet."""
    made = generate(
        request(
            output_options={"logprobs": 2, "prompt_logprobs": 0},
            routing={"dp_rank": 1},
            bootstrap_info={"bootstrap_host": "h", "bootstrap_port": 8998, "bootstrap_room": 3},
        ),
        [1], GenerationPhase(2, False), "r",
    )  # fmt: skip
    more = {
        "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0, "routed_dp_rank": 1,
        "bootstrap_host": "h", "bootstrap_port": 8998, "bootstrap_room": 3,
    }  # fmt: skip
    assert more.items() <= made.items()


def test_grammars_are_refused() -> None:
    """Its grammars need its tokenizer."""
    with pytest.raises(InvalidArgument, match="guided decoding needs SGLang's own tokenizer"):
        generate(request(sampling_options={"guided_decoding": {"json": {}}}), [1], GenerationPhase(2, False), "r")


@pytest.mark.parametrize(
    ("conditions", "outputs", "pieces", "end"),
    [
        ({}, [output([4]), output([9], {"type": "stop", "matched": 9})], [[4], [9]], (EOS, None)),
        ({}, [output([4, 5], {"type": "length", "length": 2})], [[4, 5]], (LENGTH, None)),
        ({"stop_token_ids": [7]}, [output([4, 7], {"type": "stop", "matched": 7})], [[4, 7]], (STOP, 7)),
        ({"stop_token_ids": [7], "ignore_eos": True}, [output([9]), output([7, 5])], [[9], [7]], (STOP, 7)),
        ({"ignore_eos": True}, [output([9, 9], {"type": "length", "length": 2})], [[9, 9]], (LENGTH, None)),
        ({}, [output([4, 9, 6])], [[4, 9]], (EOS, None)),
        ({}, [output([], {"type": "length", "length": 0})], [[]], (LENGTH, None)),
    ],
)
def test_ends(
    conditions: dict[str, Any], outputs: list[dict[str, Any]], pieces: list[list[int]], end: tuple[str, int | None]
) -> None:
    """An answer ends at the first token that ends it, though SGLang looks for none with `ignore_eos`."""
    reader = OutputReader(request(stop_conditions=conditions))
    read = [reader.read(output, last=True).piece for output in outputs]
    assert [piece.ids for piece in read] == pieces
    assert [piece.finish for piece in read[:-1]] == [None] * (len(read) - 1)
    assert (read[-1].finish, (read[-1].ending or {}).get(STOP_REASON)) == end


def test_a_phase_that_is_not_the_last_ends_no_answer() -> None:
    """The next one goes on behind its tokens."""
    reader = OutputReader(request(stop_conditions={"min_tokens": 2}))
    piece, over = reader.read(output([4, 5], {"type": "length", "length": 2}), last=False)
    assert (piece.finish, over, reader.tokens) == (None, True, [4, 5])
    assert reader.read(output([9], {"type": "stop", "matched": 9}), last=True).piece.finish == EOS


def test_extras() -> None:
    """Cached tokens with the first delta; per token its log probability and the best others; the prompt's at first."""
    reader = OutputReader(request(output_options={"logprobs": 1, "prompt_logprobs": 0}))
    about: dict[str, Any] = {
        "input_token_logprobs": [(None, 1, None), (-0.5, 2, None), (-1.5, 3, None)],
        "output_token_logprobs": [(-0.25, 4, None)], "output_top_logprobs": [[(-0.25, 4, None)]],
    }  # fmt: skip
    first = reader.read(output([4], **about), last=True).piece
    assert first.extras == {
        CACHED_TOKENS: 2, PROMPT_LOGPROBS: [None, -0.5, -1.5], LOG_PROBS: [-0.25], TOP_LOGPROBS: [[[4, -0.25]]],
    }  # fmt: skip
    second = reader.read(
        output([5], output_token_logprobs=[(-2.0, 5, None)], output_top_logprobs=[[(-1.0, 6, None)]]), last=True
    ).piece
    assert second.extras == {LOG_PROBS: [-2.0], TOP_LOGPROBS: [[[6, -1.0]]]}


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ({"type": "abort", "message": "too long", "status_code": 400}, InvalidArgument),
        ({"type": "abort", "message": "The request queue is full.", "status_code": 503}, CapacityExceeded),
        ({"type": "abort", "message": "boom", "status_code": 500}, EngineError),
        ({"type": "abort", "message": None, "status_code": None}, EngineError),
    ],
)
def test_errors(reason: dict[str, Any], kind: type[Exception]) -> None:
    """An aborted request is the client's mistake, a full engine, or the engine's failure."""
    assert type(error_of(reason)) is kind
    with pytest.raises(kind):
        OutputReader(request()).read(output([], reason), last=True)


BASE = [
    "--model-path", "/m", "--served-model-name", "m", "--tp-size", "4", "--page-size", "16", "--skip-tokenizer-init",
    "--incremental-streaming-output",
]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "given", "words"),
    [
        ({}, {}, []),
        ({"context_length": 4096}, {}, ["--context-length", "4096"]),
        ({"role": "prefill"}, {}, ["--disaggregation-mode", "prefill"]),
        ({"num_nodes": 2, "node_rank": 0}, {}, ["--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "a:29500"]),
        ({"num_nodes": 2, "node_rank": 1}, {}, ["--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "a:29500"]),
        (
            {},
            {"mem-fraction-static": 0.8, "enable_metrics": True, "disable-overlap-schedule": False, "log_level": None},
            ["--mem-fraction-static", "0.8", "--enable-metrics"],
        ),
        ({}, {"lora-paths": ["a", "b"], "json-model-override-args": {"a": 1}}, [
            "--lora-paths", "a", "b", "--json-model-override-args", '{"a":1}',
        ]),
    ],
)  # fmt: skip
def test_the_line_of_each_node(flags: dict[str, Any], given: dict[str, Any], words: list[str]) -> None:
    """Leader and follower differ by their rank alone."""
    settings = WorkerSettings(engine="sglang", tensor_parallel_size=4, leader_addr="a:29500", **flags)
    assert argv(arguments(settings, "/m", "m", given)) == BASE + words


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model-path", "the worker's own --model-path"),
        ("tp_size", "--tensor-parallel-size"),
        ("--nnodes", "--num-nodes"),
        ("skip-tokenizer-init", "the worker speaks tokens"),
    ],
)
def test_what_the_worker_says_itself_is_refused(name: str, says: str) -> None:
    """One truth: the flag to use instead is named."""
    with pytest.raises(InvalidArgument, match=says):
        arguments(WorkerSettings(engine="sglang"), "/m", "m", {name: 1})


def test_events_are_heard_on_this_machine_only() -> None:
    """Bound to loopback, with a socket for what was missed."""
    config = msgspec.json.decode(kv_events(5000, 5002))
    assert (config["endpoint"], config["replay_endpoint"]) == ("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5002")
    assert (config["publisher"], config["bind"]) == ("zmq", True)


def test_a_start_that_nobody_waits_for_any_more() -> None:
    """Ctrl-C while the model loads: the thread ends in order, and nobody waits for it in vain."""
    home = _Home({})
    home._ready.cancel()
    home._live()
    assert home._ended.is_set()
    asyncio.run(home.stop())
