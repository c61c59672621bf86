"""The adapter's words against the real package: what it imports without a GPU, and what its sources say of the rest."""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worker.engines.sglang import played_sglang

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.openai.dialects import DIALECTS
from dynamo.worker.engines.sglang.arguments import FIXED, arguments, argv, kv_events
from dynamo.worker.engines.sglang.engine import read_arguments
from dynamo.worker.engines.sglang.requests import GenerationPhase, generate
from dynamo.worker.settings import WorkerSettings

NODES: dict[str, Any] = {
    "num_nodes": 2,
    "leader_addr": "leader:29500",
    "tensor_parallel_size": 4,
    "context_length": 4096,
}


def line(given: dict[str, Any] | None = None, **flags: Any) -> list[str]:
    return argv(arguments(WorkerSettings(engine="sglang", **flags), "/model", "m", given or {}))


def source(module: str) -> ast.Module:
    """A module that may not import here."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return ast.parse(Path(found.origin).read_text())


@pytest.mark.parametrize("rank", [0, 1])
def test_its_parser_reads_the_line_of_each_node(rank: int) -> None:
    """With the values that ours have."""
    read = read_arguments(line(**NODES, node_rank=rank))
    assert (read.nnodes, read.node_rank, read.dist_init_addr) == (2, rank, "leader:29500")
    assert (read.model_path, read.served_model_name, read.tp_size) == ("/model", "m", 4)
    assert (read.page_size, read.context_length) == (16, 4096)
    assert (read.skip_tokenizer_init, read.incremental_streaming_output) == (True, True)


def test_roles_are_its_modes() -> None:
    """Prefill and decode."""
    assert [read_arguments(line(role=role)).disaggregation_mode for role in ("prefill", "decode", "aggregated")] == [
        "prefill", "decode", "null",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mem-fraction-statik": 0.8}, "mem-fraction-statik"),
        ({"schedule-policy": 3.5}, "schedule-policy"),
        ({"max-running-requests": "many"}, "max-running-requests"),
    ],
)
def test_what_it_does_not_know_is_refused_in_its_words(given: dict[str, Any], says: str) -> None:
    """Names, choices and types."""
    with pytest.raises(InvalidArgument, match=says):
        read_arguments(line(given))


def test_what_is_fixed_exists() -> None:
    """A name that it drops would be refused for nothing."""
    known = set(vars(read_arguments(line())).keys()) if hasattr(read_arguments(line()), "__dict__") else set()
    from sglang.srt.server_args import ServerArgs

    known |= {field.name for field in msgspec.structs.fields(ServerArgs)}
    assert set(FIXED) - {"stream_output"} <= known


def test_events_are_configured_as_it_reads_them() -> None:
    """Its own model of the configuration takes ours."""
    from sglang.srt.disaggregation.kv_events import KVEventsConfig

    read = KVEventsConfig.model_validate_json(kv_events(5000, 5002))
    assert (read.publisher, read.bind, read.endpoint) == ("zmq", True, "tcp://127.0.0.1:5000")


def test_requests_are_in_its_words() -> None:
    """Each name is one of its engine's call, and its sampling parameters take theirs."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = msgspec.convert(
        {
            "model": "m", "token_ids": [1], "eos_token_ids": [2],
            "sampling_options": {
                "temperature": 0.0, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 3, "presence_penalty": 0.1,
                "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"4": 1.0},
            },
            "stop_conditions": {"stop_token_ids": [5]}, "output_options": {"logprobs": 2, "prompt_logprobs": 0},
            "dp_rank": 0, "bootstrap_info": {"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 2},
        },
        PreprocessedRequest,
    )  # fmt: skip
    made = generate(request, [1], GenerationPhase(8, False), "r")
    SamplingParams(**made["sampling_params"]).verify(100)
    calls = [
        node for node in ast.walk(source("sglang.srt.entrypoints.engine"))
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "async_generate"
    ]  # fmt: skip
    names = {one.arg for one in (*calls[0].args.args, *calls[0].args.kwonlyargs)}
    assert made.keys() <= names


def test_its_server_takes_what_engine_openai_sends() -> None:
    """By its own contract of the route `/generate`, which refuses fields and types that it doesn't know."""
    from sglang.api.v1.api_types import GenerateRequest

    request = msgspec.convert(
        {
            "model": "m", "token_ids": [1, 2], "stop_conditions": {"max_tokens": 5, "min_tokens": 2},
            "sampling_options": {"temperature": 0.0, "top_p": 0.9, "top_k": 4, "seed": 3, "logit_bias": {"4": 1.0}},
        },
        PreprocessedRequest,
    )  # fmt: skip
    dialect = DIALECTS["sglang"]
    body = {**dialect.call(request, "m", 10).body, dialect.adapter_field: "sql"}
    read = GenerateRequest.from_json_value(json.loads(json.dumps(body)))
    assert (read.input_ids, read.stream, read.lora_path) == ([1, 2], True, "sql")
    sampling = read.sampling_params
    assert (sampling.max_new_tokens, sampling.ignore_eos, sampling.logit_bias) == (5, True, {"4": 1.0})


def test_what_the_adapter_reaches_into_is_there() -> None:
    """By the sources: these modules want a GPU's packages."""
    engine = ast.unparse(source("sglang.srt.entrypoints.engine"))
    for words in (
        "self._scheduler_init_result", "def shutdown(self)", "SGLANG_BLOCK_NONZERO_RANK_CHILDREN",
        "block_until_scheduler_exits", "self.server_args = server_args",
    ):  # fmt: skip
        assert words in engine
    manager = ast.unparse(source("sglang.srt.managers.tokenizer_manager"))
    for words in (
        "self.model_config.vocab_size",
        "def abort_request(self, rid: str",
        "self.context_len =",
        "'output_ids': output_token_ids",
    ):
        assert words in manager
    assert "'max_total_num_tokens': self.max_total_num_tokens" in ast.unparse(source("sglang.srt.managers.scheduler"))


def parameters(tree: ast.Module, name: str) -> set[str]:
    """Of the functions of that name, wherever they are."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node.args for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name]
    return {one.arg for args in found for one in (*args.args, *args.kwonlyargs)}


async def said(**asked: Any) -> list[dict[str, Any]]:
    """What the engine that is played in `tests/worker` answers."""
    engine = played_sglang.Engine(None)
    sampling = {"max_new_tokens": 2, "ignore_eos": False, **asked.pop("sampling", {})}
    if asked.pop("aborted", False):
        engine.tokenizer_manager.abort_request("r")
    stream = await engine.async_generate(input_ids=[1], rid="r", sampling_params=sampling, **asked)
    return [output async for output in stream]


def test_the_engine_that_is_played_speaks_as_it_does() -> None:
    """`tests/worker/engines/sglang/test_engine.py` runs the adapter over it: names of calls, of outputs, and each way
    to end."""
    from sglang.srt.managers import schedule_batch

    played = inspect.signature(played_sglang.Manager.abort_request).parameters
    manager = source("sglang.srt.managers.tokenizer_manager")
    assert set(played) <= parameters(manager, "abort_request")
    assert "resolved_dict" in dir(importlib.import_module("sglang.srt.server_args").ServerArgs)
    constants = {node.value for node in ast.walk(manager) if isinstance(node, ast.Constant)}
    (first, last) = asyncio.run(said(return_logprob=True, top_logprobs_num=1))
    assert {*first, *first["meta_info"]} <= constants
    ends = [
        (last, schedule_batch.FINISH_LENGTH(2)),
        (asyncio.run(said(sampling={"stop_token_ids": [2]}))[-1], schedule_batch.FINISH_MATCHED_TOKEN(2)),
        (asyncio.run(said(aborted=True))[-1], schedule_batch.FINISH_ABORT()),
    ]
    for output, theirs in ends:
        assert output["meta_info"]["finish_reason"] == theirs.to_json()
