"""TensorRT-LLM's words for our requests and ours for its outputs, by table; and what each node of a group runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.worker.engines.trtllm.trtllm_outputs import Completion, Logprob

from dynamo.llm.protocols import EOS, LENGTH, LOG_PROBS, STOP, STOP_REASON, TOP_LOGPROBS, PreprocessedRequest
from dynamo.runtime.errors import EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.support.open_requests import EngineOutput
from dynamo.worker.engines.trtllm.requests import lines, llm_arguments, read, sampling_arguments
from dynamo.worker.settings import WorkerSettings

PLAIN = {"detokenize": False, "include_stop_str_in_output": True, "end_id": 9, "pad_id": 9, "max_tokens": 50}


def request(**more: Any) -> PreprocessedRequest:
    return msgspec.convert({"model": "m", "token_ids": [1, 2, 3], "eos_token_ids": [9], **more}, PreprocessedRequest)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"stop_conditions": {"max_tokens": 8, "min_tokens": 2}}, {"max_tokens": 8, "min_tokens": 2}),
        ({"stop_conditions": {"max_tokens": 80, "min_tokens": 60}}, {"max_tokens": 50, "min_tokens": 50}),
        ({"stop_conditions": {"ignore_eos": True}}, {"end_id": -1}),
        ({"stop_conditions": {"stop_token_ids": [7]}}, {"stop_token_ids": [7]}),
        ({"eos_token_ids": [9, 8]}, {"stop_token_ids": [8]}),
        ({"eos_token_ids": []}, {"end_id": -1, "pad_id": 0}),
        ({"sampling_options": {"temperature": 0.0}}, {"temperature": 1.0, "top_k": 1}),
        ({"sampling_options": {"temperature": 0.5, "top_k": -1}}, {"temperature": 0.5, "top_k": 0}),
        ({"sampling_options": {"top_p": 0.9, "min_p": 0.1, "seed": 3}}, {"top_p": 0.9, "min_p": 0.1, "seed": 3}),
        ({"output_options": {"logprobs": 0}}, {"logprobs": 1}),
        ({"output_options": {"logprobs": 4}}, {"logprobs": 4}),
    ],
)
def test_sampling_is_said_in_its_words(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """What is not asked for is left to it."""
    assert sampling_arguments(request(**given), 50) == PLAIN | expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sampling_options": {"guided_decoding": {"json": {}}}}, "guided decoding"),
        ({"sampling_options": {"logit_bias": {"4": 1.0}}}, "logit_bias"),
        ({"output_options": {"prompt_logprobs": 0}}, "prompt_logprobs"),
    ],
)
def test_what_it_can_not_do_is_refused(given: dict[str, Any], says: str) -> None:
    """Before any output, and not passed over."""
    with pytest.raises(InvalidArgument, match=says):
        sampling_arguments(request(**given), 50)


@pytest.mark.parametrize(
    ("completion", "piece"),
    [
        (Completion([4, 5]), EngineOutput([4, 5], None, None)),
        (Completion([5], "length"), EngineOutput([5], None, LENGTH)),
        (Completion([9], "stop"), EngineOutput([9], None, EOS)),
        (Completion([], "stop"), EngineOutput([], None, EOS)),
        (Completion([7], "stop", 7), EngineOutput([7], None, STOP, {STOP_REASON: 7})),
        (Completion([], "stop", 7), EngineOutput([], None, STOP, {STOP_REASON: 7})),
    ],
)
def test_outputs(completion: Completion, piece: EngineOutput) -> None:
    """Tokens since the last one, and how it ends."""
    assert read(completion, request(stop_conditions={"stop_token_ids": [7]})) == piece


def test_log_probabilities() -> None:
    """The chosen token's and the best ones, best first."""
    table = {4: Logprob(-2.0), 6: Logprob(-0.5), 7: Logprob(-1.0)}
    extras = read(Completion([4], logprobs_diff=[table]), request(output_options={"logprobs": 2})).extras
    assert extras == {LOG_PROBS: [-2.0], TOP_LOGPROBS: [[[6, -0.5], [7, -1.0]]]}


@pytest.mark.parametrize(("reason", "kind"), [("cancelled", EngineShutdown), ("timeout", EngineError)])
def test_what_went_wrong(reason: str, kind: type[Exception]) -> None:
    """A request that the engine gave up goes on elsewhere; a time limit of its own does not."""
    with pytest.raises(kind):
        read(Completion([], reason), request())


def test_arguments() -> None:
    """Ours and the user's; nested objects are joined."""
    settings = WorkerSettings(engine="trtllm", tensor_parallel_size=8, kv_cache_block_size=32, context_length=4096)
    given = {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}, "max-batch-size": 64}
    assert llm_arguments(settings, "/m", given) == {
        "model": "/m", "tensor_parallel_size": 8, "skip_tokenizer_init": True, "max_seq_len": 4096,
        "kv_cache_config": {"tokens_per_block": 32, "free_gpu_memory_fraction": 0.8}, "max_batch_size": 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "says"), [("model", "--model-path"), ("max_seq_len", "--context-length"), ("tokenizer", "speaks tokens")]
)
def test_what_the_worker_says_itself_is_refused(name: str, says: str) -> None:
    """One truth: the flag to use instead is named."""
    with pytest.raises(InvalidArgument, match=says):
        llm_arguments(WorkerSettings(engine="trtllm"), "/m", {name: 1})


def test_the_lines_of_a_group_on_mpi() -> None:
    """The leader starts a rank per GPU over ssh, the others let it in; the key is the host's, and checked."""
    leader, follower = lines(["dynamo-worker", "--engine", "trtllm"], ["a", "b"], 8, "/keys")
    assert leader == [
        "mpirun", "--oversubscribe", "-n", "16", "-H", "a:8,b:8", "--mca", "plm_rsh_args",
        "-p 2222 -i /keys/id_rsa -o UserKnownHostsFile=/keys/known_hosts -o HostKeyAlias=dynamo-nodes",
        "trtllm-llmapi-launch", "dynamo-worker", "--engine", "trtllm",
    ]  # fmt: skip
    assert follower[:7] == ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", "2222"]
    assert "AuthorizedKeysFile=/keys/id_rsa.pub" in follower
    assert "PasswordAuthentication=no" in follower
