"""What vLLM is told: flags among its own arguments, contradictions, what is not taken. vLLM itself isn't needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import LocalModel, ModelCard, open_model
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.vllm.arguments import EventSockets, check_names, command_line, merged, one_line
from dynamo.worker.settings import WorkerSettings

MODEL = LocalModel(ModelCard(name="tiny"), path=Path("/models/tiny"))
SOCKETS = EventSockets.within(Path("/tmp/private"))
EVENTS = {
    "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "ipc:///tmp/private/inproc-events",
    "replay_endpoint": "ipc:///tmp/private/inproc-replay",
}  # fmt: skip
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
BOTH = {"kv_role": "kv_both"}
PRODUCER = {"kv_role": "kv_producer"}
PLAIN = {"model": "/models/tiny", "served_model_name": ["tiny"], "kv_events_config": EVENTS}


def told(given: dict[str, Any] | None = None, **flags: Any) -> dict[str, Any]:
    return merged(WorkerSettings(engine="vllm", engine_args=json.dumps(given or {}), **flags), MODEL, SOCKETS)


@pytest.mark.parametrize(
    ("given", "flags", "more"),
    [
        ({}, {}, {}),
        ({}, {"context_length": 4096}, {"max_model_len": 4096}),
        ({"max-model-len": 4096}, {"context_length": 4096}, {"max_model_len": 4096}),
        ({"--dtype": "auto"}, {"tensor_parallel_size": 2}, {"dtype": "auto", "tensor_parallel_size": 2}),
        ({"tensor_parallel_size": 2}, {}, {"tensor_parallel_size": 2}),
        ({}, {"kv_cache_block_size": 32}, {"block_size": 32}),
        ({"block-size": 64}, {}, {"block_size": 64}),
        ({"enable_prefix_caching": False}, {}, {"enable_prefix_caching": False, "kv_events_config": None}),
        ({"kv-events-config": {"publisher": "null"}}, {}, {"kv_events_config": {"publisher": "null"}}),
        ({"enable_lora": False}, {}, {"enable_lora": False}),
        ({"kv_transfer_config": BOTH}, {}, {"kv_transfer_config": BOTH}),
        ({}, {"role": "prefill"}, {"kv_transfer_config": NIXL}),
        ({}, {"role": "decode"}, {"kv_transfer_config": NIXL}),
        ({"kv-transfer-config": PRODUCER}, {"role": "prefill"}, {"kv_transfer_config": PRODUCER}),
    ],
)
def test_flags_and_arguments_meet(given: dict[str, Any], flags: dict[str, Any], more: dict[str, Any]) -> None:
    assert told(given, **flags) == {**PLAIN, **more}


@pytest.mark.parametrize(
    ("given", "flags", "said"),
    [
        ({"max-model-len": 100}, {"context_length": 4096}, "--context-length 4096.*'max_model_len' 100 contradict"),
        ({"block_size": 16}, {"kv_cache_block_size": 32}, "--kv-cache-block-size 32"),
        ({"max-model-len": 1, "max_model_len": 1}, {}, "given twice"),
        ({"model": "other"}, {}, "--model-path names the model"),
        ({"enable-lora": True}, {}, "merge it into the weights"),
        ({"nnodes": 2}, {}, "--num-nodes"),
        ({"kv_transfer_config": PRODUCER}, {"role": "decode"}, "--role decode, which takes kv_both or kv_consumer"),
        ({"kv_transfer_config": PRODUCER}, {}, "kv_producer.*does not fit --role aggregated, which takes kv_both"),
    ],
)
def test_contradictions_are_refused(given: dict[str, Any], flags: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        told(given, **flags)


def test_words_of_vllm_serve() -> None:
    """Switches, lists, objects and what is unset, as its command line has them."""
    arguments = {
        "model": "/m", "enforce_eager": True, "enable_prefix_caching": False, "seed": -1, "dtype": None,
        "served_model_name": ["a", "b"], "kv_events_config": {"publisher": "zmq"},
    }  # fmt: skip
    assert command_line(arguments) == [
        "--model=/m", "--enforce-eager", "--no-enable-prefix-caching", "--seed=-1", "--served-model-name", "a", "b",
        '--kv-events-config={"publisher": "zmq"}',
    ]  # fmt: skip


def test_a_typo_is_corrected() -> None:
    with pytest.raises(InvalidArgument, match="'max_modl_len'; did you mean 'max_model_len'"):
        check_names(["dtype", "max_modl_len"], ["dtype", "max_model_len"])


def test_pydantics_report_becomes_a_line() -> None:
    report = "1 validation error for CacheConfig\nblock_size\n  Input should be 1\n    For further information visit x"
    assert one_line(report) == "1 validation error for CacheConfig block_size Input should be 1"
    assert one_line("") == "str"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Something that would be found as vLLM; it is never imported."""
    (tmp_path / "vllm.py").write_text("raise AssertionError('imported too early')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.mark.parametrize(
    ("model", "flags", "said"),
    [
        (open_model(None), {}, "needs --model-path with a folder"),
        (LocalModel(ModelCard(name="x"), path=Path(__file__)), {}, ".gguf files are llamacpp's"),
        (LocalModel(ModelCard(name="x"), path=Path(__file__).parent), {"role": "prefill"}, "pip install nixl"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_cant_be_served_is_refused_at_once(model: LocalModel, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        create_engine(WorkerSettings(engine="vllm", **flags), model)


def test_without_vllm_it_says_how_to_install_it() -> None:
    """The development environment has none."""
    with pytest.raises(InvalidArgument, match=r"not installed: run pip install -e '\.\[vllm\]'"):
        create_engine(WorkerSettings(engine="vllm"), MODEL)
