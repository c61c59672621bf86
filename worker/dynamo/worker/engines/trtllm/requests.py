"""Our requests in TensorRT-LLM's words, what it says of them in ours, and its lines on MPI. Pure.

Read off the sources of TensorRT-LLM's LLM API (`SamplingParams`, `CompletionOutput`, `trtllm-llmapi-launch`); the
package itself comes from NVIDIA's index only, so none of it was run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import (
    EOS,
    LENGTH,
    LOG_PROBS,
    STOP,
    STOP_REASON,
    TOP_LOGPROBS,
    PreprocessedRequest,
)
from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.support.open_requests import EngineOutput
from dynamo.worker.engines.support.request_checks import left
from dynamo.worker.engines.support.sampling import sampling_of
from dynamo.worker.settings import WorkerSettings

OURS: Final = {
    "model": "--model-path", "tensor_parallel_size": "--tensor-parallel-size", "max_seq_len": "--context-length",
    "skip_tokenizer_init": "", "tokenizer": "", "mpi_session": "",
}  # fmt: skip
"""TensorRT-LLM's names for what the worker's own flags say; those without a flag are what the adapter is built on."""
SSH_PORT: Final = 2222
LAUNCH: Final = "trtllm-llmapi-launch"


def llm_arguments(settings: WorkerSettings, model_path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `LLM`: ours, then the user's (which may hold whole objects, as in its YAML files).

    Raises `InvalidArgument` for a name of the user's that one of our flags stands for.
    """
    made: dict[str, Any] = {
        "model": model_path, "tensor_parallel_size": settings.tensor_parallel_size, "skip_tokenizer_init": True,
    }  # fmt: skip
    if settings.context_length is not None:
        made["max_seq_len"] = settings.context_length
    for name, value in given.items():
        key = name.lstrip("-").replace("-", "_")
        if key in OURS:
            flag = OURS[key]
            raise InvalidArgument(
                f"trtllm argument {key!r} is the worker's own {flag}: give it there"
                if flag
                else f"trtllm argument {key!r} can't be given: the worker speaks tokens"
            )
        made[key] = value
    cache = dict(made.get("kv_cache_config") or {})
    made["kv_cache_config"] = {"tokens_per_block": settings.block_size, **cache}
    return made


def sampling_arguments(request: PreprocessedRequest, room: int) -> dict[str, Any]:
    """Return the arguments of `SamplingParams`; `room` is what the context leaves for the answer, in tokens."""
    conditions, options, wants = request.stop_conditions, request.sampling_options, request.output_options
    if options.guided_decoding:
        raise InvalidArgument("guided decoding needs TensorRT-LLM's own tokenizer, which is off here")
    if options.logit_bias:
        raise InvalidArgument("logit_bias is not there for trtllm")
    if wants.prompt_logprobs is not None:
        raise InvalidArgument("prompt_logprobs is not there for trtllm")
    wanted = left(request, room)
    made: dict[str, Any] = {
        "max_tokens": wanted, "detokenize": False, "include_stop_str_in_output": True,
        # Without a tokenizer there must be an end token, and -1 is none.
        "end_id": -1 if conditions.ignore_eos or not request.eos_token_ids else request.eos_token_ids[0],
        "pad_id": request.eos_token_ids[0] if request.eos_token_ids else 0,
    }  # fmt: skip
    made |= sampling_of(EngineName.TRTLLM, options)
    if made.get("temperature") == 0:
        made |= {"temperature": 1.0, "top_k": 1}  # its word for greedy
    if made.get("top_k") == -1:
        made["top_k"] = 0  # its word for all of them
    stops = [*([] if conditions.ignore_eos else request.eos_token_ids[1:]), *conditions.stop_token_ids]
    if stops:
        made["stop_token_ids"] = stops
    if conditions.min_tokens:
        made["min_tokens"] = min(conditions.min_tokens, wanted)
    if wants.logprobs is not None:
        made["logprobs"] = max(1, wants.logprobs)
    return made


class Completion(Protocol):
    """Fields that are read of its `CompletionOutput`."""

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def stop_reason(self) -> int | str | None: ...

    @property
    def token_ids_diff(self) -> list[int]: ...

    @property
    def logprobs_diff(self) -> list[Any]: ...


def read(completion: Completion, request: PreprocessedRequest) -> EngineOutput:
    """Read one output of a stream; raises what the engine says went wrong."""
    ids = list(completion.token_ids_diff)
    extras: dict[str, Any] = {}
    wanted = request.output_options.logprobs
    if wanted is not None and ids:
        tables = list(completion.logprobs_diff)[: len(ids)]
        extras[LOG_PROBS] = [float(table[token].logprob) for token, table in zip(ids, tables, strict=True)]
        if wanted:
            extras[TOP_LOGPROBS] = [_best(table, wanted) for table in tables]
    reason = completion.finish_reason
    if reason is None:
        return EngineOutput(ids, extras or None, None)
    if reason == "cancelled":
        raise EngineShutdown("TensorRT-LLM cancelled the request")
    if reason not in ("stop", "length"):
        raise EngineError(f"TensorRT-LLM ended the request: {reason}")
    if reason == "length":
        return EngineOutput(ids, extras or None, LENGTH)
    matched = ids[-1] if ids else completion.stop_reason
    if matched in request.stop_conditions.stop_token_ids:
        return EngineOutput(ids, extras or None, STOP, {STOP_REASON: matched})
    return EngineOutput(ids, extras or None, EOS)


def _best(table: Mapping[int, Any], count: int) -> list[list[Any]]:
    ranked = sorted(table.items(), key=lambda entry: -float(entry[1].logprob))
    return [[token, float(entry.logprob)] for token, entry in ranked[:count]]


def mpirun(command: Sequence[str], hosts: Sequence[str], gpus_per_node: int, folder: str) -> list[str]:
    """Return the leader's line: an MPI rank for each GPU, started over ssh.

    Rank 0 runs `command`, the others its executor.

    `folder` holds the group's key, `id_rsa`, and `known_hosts` with its public half under the name `dynamo-nodes`:
    so only a node that has the key is talked to.
    """
    ssh = f"-p {SSH_PORT} -i {folder}/id_rsa -o UserKnownHostsFile={folder}/known_hosts -o HostKeyAlias=dynamo-nodes"
    return [
        "mpirun", "--oversubscribe", "-n", str(len(hosts) * gpus_per_node),
        "-H", ",".join(f"{host}:{gpus_per_node}" for host in hosts), "--mca", "plm_rsh_args", ssh, LAUNCH, *command,
    ]  # fmt: skip


def sshd(folder: str) -> list[str]:
    """Return a follower's line: where `mpirun` comes in. The group's key is the host's, and the only one let in."""
    return [
        "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", str(SSH_PORT), "-h", f"{folder}/id_rsa",
        "-o", f"AuthorizedKeysFile={folder}/id_rsa.pub", "-o", "PasswordAuthentication=no", "-o", "UsePAM=no",
        "-o", "StrictModes=no", "-o", f"PidFile={folder}/sshd.pid",
    ]  # fmt: skip


def lines(command: Sequence[str], hosts: Sequence[str], gpus_per_node: int, folder: str) -> list[list[str]]:
    """Return what each node of a group runs, by rank."""
    return [mpirun(command, hosts, gpus_per_node, folder), *([sshd(folder)] * (len(hosts) - 1))]
