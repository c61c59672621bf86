"""What vLLM is told: its own arguments, with what our flags say among them.

`merged` and `command_line` are pure; `parsed` has vLLM's own parser judge the result, so that a name or a value that
it doesn't know is refused in the same words on a laptop and on a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engines.vllm.requests import CONFIG, needs_nixl, transfer_config
from dynamo.worker.settings import WorkerSettings, unknown_name

if TYPE_CHECKING:
    from dynamo.llm import LocalModel

INSTALL: Final = f"{install_hint('vllm')} (docs/how-to/serve/engines/vllm.md has what a machine without a GPU needs)"
_SAID_ELSEWHERE: Final = {
    "model": "--model-path names the model",
    "tokenizer": "frontends tokenise, by the model's own tokenizer.json",
    "served_model_name": "--model-name names it",
    "nnodes": "--num-nodes says how many there are",
    "node_rank": "--node-rank says which one this is",
    "master_addr": "--leader-addr says where rank 0 is",
    "enable_lora": "requests can't name an adapter yet; merge it into the weights",
}
"""Arguments that are not taken, with what to do instead."""
_ENVIRONMENT: Final = {
    # Forked from a process with threads and sockets, an engine may hang; vLLM itself forks where it sees no GPU.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # vLLM would tell its makers about this machine.
    "VLLM_NO_USAGE_STATS": "1",
    # Standard output is for the worker's `ready` line, or for an answer.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
}


def prepare(environment: MutableMapping[str, str], verbose: bool) -> None:
    """Set what vLLM reads while it is imported; what the user has set stands."""
    for name, value in _ENVIRONMENT.items():
        environment.setdefault(name, value)
    environment.setdefault("VLLM_LOGGING_LEVEL", "INFO" if verbose else "WARNING")


@dataclass(frozen=True)
class EventSockets:
    """Sockets where vLLM publishes its KV events and answers who missed some; a rank's name ends in `_dp<rank>`."""

    endpoint: str
    replay_endpoint: str

    @classmethod
    def within(cls, folder: Path) -> EventSockets:
        """Make private sockets in `folder`: events hold the prompts' tokens, so no port is opened for them.

        `inproc` in the name is what vLLM adds a rank's number to; for addresses without it (or a port) it knows
        no ranks.
        """
        return cls(f"ipc://{folder}/inproc-events", f"ipc://{folder}/inproc-replay")


def check(settings: WorkerSettings, model: LocalModel) -> None:
    """Raise `InvalidArgument` for what a vLLM worker can't be, before anything of vLLM is imported."""
    if importlib.util.find_spec("vllm") is None:
        raise InvalidArgument(f"engine vllm is not installed: {INSTALL}")
    if model.path is None or not model.path.is_dir():
        raise InvalidArgument(
            "engine vllm needs --model-path with a folder that holds config.json and weights"
            " (.gguf files are llamacpp's)"
        )
    if needs_nixl(settings.role, by_field(settings.arguments())) and importlib.util.find_spec("nixl") is None:
        raise InvalidArgument(
            f"--role {settings.role}: vLLM workers hand prompts over by NIXL, which is not installed: pip install nixl,"
            f" or name another connector in the engine argument {CONFIG!r}"
        )


def merged(settings: WorkerSettings, model: LocalModel, sockets: EventSockets | None) -> dict[str, Any]:
    """Merge all arguments by vLLM's names, without KV events where there are no sockets for them.

    `InvalidArgument` where two of them can't both be meant.
    """
    given = by_field(settings.arguments())
    for name in given.keys() & _SAID_ELSEWHERE.keys():
        if given[name]:
            raise InvalidArgument(f"vLLM argument {name!r} is not taken here: {_SAID_ELSEWHERE[name]}")
    flags = {  # of those that aren't given vLLM chooses: what fits depends on the hardware and the kind of attention
        "max_model_len": ("--context-length", settings.context_length),
        "tensor_parallel_size": ("--tensor-parallel-size", _unless(settings.tensor_parallel_size, 1)),
        "block_size": ("--kv-cache-block-size", settings.kv_cache_block_size),
    }
    for name, (flag, value) in flags.items():
        if value is not None and given.setdefault(name, value) != value:
            raise InvalidArgument(f"{flag} {value} and vLLM argument {name!r} {given[name]} contradict each other")
    given.setdefault("kv_events_config", _events(given, sockets))
    if (transfer := transfer_config(settings.role, given.get(CONFIG))) is not None:
        given[CONFIG] = transfer
    return {**given, "model": str(model.path), "served_model_name": [model.card.name]}


def by_field(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as people write them (`max-model-len`, `max_model_len`) by vLLM's field names."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        field = name.removeprefix("--").replace("-", "_")
        if field in fields:
            raise InvalidArgument(f"vLLM argument {field!r} is given twice")
        fields[field] = value
    return fields


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


def _events(given: Mapping[str, Any], sockets: EventSockets | None) -> dict[str, Any] | None:
    if sockets is None or given.get("enable_prefix_caching") is False:
        return None
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": sockets.endpoint,
        "replay_endpoint": sockets.replay_endpoint,
    }


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Write the same as words of `vllm serve`."""
    words: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{flag}", *map(_word, value)]
        elif value is not None:
            words.append(f"--{flag}={_word(value)}")
    return words


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `InvalidArgument` for the first name that vLLM has no flag for, with the nearest that it has."""
    flags = set(known)
    for name in names:
        if name not in flags:
            raise unknown_name("vLLM argument", name, sorted(flags - _SAID_ELSEWHERE.keys()))


def parsed(arguments: Mapping[str, Any]) -> Any:
    """Parse vLLM's `AsyncEngineArgs`; `InvalidArgument` says in one sentence what its parser says. Imports vLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc] # untyped
        def error(self, message: str) -> NoReturn:
            raise InvalidArgument(f"vLLM does not take its arguments: {one_line(message)}")

    parser = AsyncEngineArgs.add_cli_args(Parser(add_help=False, allow_abbrev=False))
    check_names(arguments, (action.dest for action in parser._actions))
    words = command_line(arguments)
    try:
        return AsyncEngineArgs.from_cli_args(parser.parse_args(words))
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        raise InvalidArgument(f"vLLM does not take its arguments: {one_line(error)}") from error


def one_line(error: object) -> str:
    """Return what an error says, without the report that pydantic makes of it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentences = [line for line in lines if not line.startswith("For further information")]
    return " ".join(sentences)[:500] or type(error).__name__
