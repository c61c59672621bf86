"""SGLang's command line for each node of a replica. Pure; the names are those of sglang 0.5.23's `ServerArgs`.

The leader's line is read by SGLang's own parser and given to its engine in this process, and so is a follower's, so
that what runs here is what `python -m sglang.launch_server` would run with the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.settings import WorkerSettings

OURS: Final = {
    "model_path": "--model-path", "model": "--model-path", "served_model_name": "--model-name",
    "tp_size": "--tensor-parallel-size", "tensor_parallel_size": "--tensor-parallel-size",
    "nnodes": "--num-nodes", "node_rank": "--node-rank", "dist_init_addr": "--leader-addr",
    "nccl_init_addr": "--leader-addr", "page_size": "--kv-cache-block-size", "context_length": "--context-length",
    "disaggregation_mode": "--role",
}  # fmt: skip
"""SGLang's names for what the worker's own flags say."""
FIXED: Final = ("skip_tokenizer_init", "incremental_streaming_output", "stream_output", "tokenizer_worker_num")
"""What this adapter is built on."""
_MODES: Final = {"prefill": "prefill", "decode": "decode"}


def arguments(settings: WorkerSettings, model_path: str, model_name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what SGLang is given on this node, by its own names with underscores: ours, then the user's.

    Raises `InvalidArgument` for a name of the user's that one of our flags stands for.
    """
    made: dict[str, Any] = {
        "model_path": model_path, "served_model_name": model_name, "tp_size": settings.tensor_parallel_size,
        "page_size": settings.block_size, "skip_tokenizer_init": True, "incremental_streaming_output": True,
    }  # fmt: skip
    if settings.context_length is not None:
        made["context_length"] = settings.context_length
    if settings.role in _MODES:
        made["disaggregation_mode"] = _MODES[settings.role]
    if settings.num_nodes > 1:
        made |= {"nnodes": settings.num_nodes, "node_rank": settings.node_rank, "dist_init_addr": settings.leader_addr}
    return made | _checked(given)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name.lstrip("-").replace("-", "_"): value for name, value in given.items()}
    for name in arguments:
        if name in OURS:
            raise InvalidArgument(f"sglang argument {name!r} is the worker's own {OURS[name]}: give it there")
        if name in FIXED:
            raise InvalidArgument(
                f"sglang argument {name!r} can't be given: the worker speaks tokens, in disjoint parts"
            )
    return arguments


def argv(made: Mapping[str, Any]) -> list[str]:
    """Return the words for `python -m sglang.launch_server`.

    Null and false are SGLang's defaults for flags, and left out.
    """
    words: list[str] = []
    for name, value in made.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if isinstance(value, list | tuple):
            words += [_word(item) for item in value]
        elif value is not True:
            words.append(_word(value))
    return words


def _word(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)


def kv_events(port: int, replay_port: int) -> str:
    """Return its `--kv-events-config` for events that only this machine hears; ranks take the ports after these."""
    return json.dumps({
        "publisher": "zmq", "bind": True, "endpoint": f"tcp://127.0.0.1:{port}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay_port}", "topic": "",
    })  # fmt: skip
