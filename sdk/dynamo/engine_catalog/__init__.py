"""List the engines with the traits that worker, operator and command line need: a new engine gets a member and a row.

It imports nothing but the standard library, since the operator runs without the packages that the runtime needs. It is
a package, not a module, since nothing may lie directly in the namespace (`tests/test_layout.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

Reads = Literal["any", "gguf", "folder", "tokenizer"]
"""What an engine reads of a model: GGUF files or folders, GGUF files only, folders only, or no weights at all."""


KV_BLOCK_SIZE: Final = 16


class EngineName(StrEnum):
    """Name of an engine, which runs the model."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LLAMACPP = "llamacpp"
    MISTRALRS = "mistralrs"
    MOCKER = "mocker"
    ECHO_CORE = "echo_core"
    ECHO_FULL = "echo_full"
    OPENAI = "openai"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """Describe one engine."""

    title: str
    """For the help of `dynamo-run`."""
    engine_class: str
    """`module:Class` in the worker; imported only for a worker with this engine."""
    node_class: str = ""
    """`module:Class` of what runs on a node beside the leader; empty where the worker can't start such nodes."""
    extra: str = ""
    """Extra of the distribution to install; empty where the worker needs nothing more."""
    package: str = ""
    """Top-level package that the extra brings."""
    reads: Reads = "any"
    needs_model: bool = True
    takes_text: bool = False
    """Requests arrive as text, and the frontend has no tokenizer for them."""
    cpu_only: bool = False
    """A worker asks Kubernetes for no GPU unless its pipeline names an accelerator."""
    multi_node: bool = False
    disaggregated: bool = False
    """Prefill and decode can be workers of their own."""
    cache_salt: bool = False
    """It keeps the KV blocks of a request's `cache_salt` apart, or keeps none."""
    bad_words: bool = False
    """It leaves out words of several tokens."""
    kv_block_size: int = KV_BLOCK_SIZE
    """Tokens in a KV block unless somebody says otherwise; as NVIDIA Dynamo starts this engine."""
    chooses_kv_block_size: bool = False
    """It has a default of its own, which depends on the hardware and the kind of attention."""

    @property
    def loads_weights(self) -> bool:
        """Tell whether it loads weights: a model costs memory and time. Simulated engines use its tokenizer only."""
        return self.reads != "tokenizer"


CATALOG: Final[dict[EngineName, EngineTraits]] = {
    EngineName.VLLM: EngineTraits(
        title="vLLM, on GPUs, for a folder of safetensors",
        engine_class="dynamo.worker.engines.vllm.engine:Vllm",
        node_class="dynamo.worker.engines.vllm.sidecar:VllmNode",
        extra="vllm", package="vllm", reads="folder", multi_node=True, disaggregated=True,
        cache_salt=True, bad_words=True, chooses_kv_block_size=True,
    ),
    EngineName.SGLANG: EngineTraits(
        title="SGLang, on GPUs, for a folder of safetensors",
        engine_class="dynamo.worker.engines.sglang.engine:SgLang",
        node_class="dynamo.worker.engines.sglang.engine:SgLangNode",
        extra="sglang", package="sglang", reads="folder", multi_node=True, disaggregated=True,
    ),
    EngineName.TRTLLM: EngineTraits(
        title="TensorRT-LLM, on GPUs, for a folder of safetensors",
        engine_class="dynamo.worker.engines.trtllm.engine:TrtLlm",
        extra="trtllm", package="tensorrt_llm", reads="folder", multi_node=True, disaggregated=True, kv_block_size=32,
    ),
    EngineName.LLAMACPP: EngineTraits(
        title="llama.cpp, for a .gguf file (default for one)",
        engine_class="dynamo.worker.engines.llamacpp.engine:LlamaCpp",
        extra="llamacpp", package="xllamacpp", reads="gguf", cpu_only=True,
    ),
    EngineName.MISTRALRS: EngineTraits(
        title="mistral.rs, for a .gguf file or a folder of safetensors (default for other models)",
        engine_class="dynamo.worker.engines.mistralrs.engine:MistralRs",
        extra="mistralrs", package="mistralrs", cpu_only=True,
    ),
    EngineName.MOCKER: EngineTraits(
        title="a simulated engine with real scheduling and timing",
        engine_class="dynamo.worker.engines.mocker.engine:Mocker",
        node_class="dynamo.worker.engines.mocker.engine:MockNode",
        reads="tokenizer", needs_model=False, cpu_only=True, multi_node=True, disaggregated=True,
        cache_salt=True, bad_words=True, kv_block_size=64,
    ),
    EngineName.ECHO_CORE: EngineTraits(
        title="the prompt's own tokens, after the chat template",
        engine_class="dynamo.worker.engines.echo:EchoCore",
        reads="tokenizer", needs_model=False, cpu_only=True, cache_salt=True,
    ),
    EngineName.ECHO_FULL: EngineTraits(
        title="the prompt's own text (also: echo; default without a model)",
        engine_class="dynamo.worker.engines.echo:EchoFull",
        reads="tokenizer", needs_model=False, takes_text=True, cpu_only=True,
    ),
    EngineName.OPENAI: EngineTraits(
        title="an OpenAI-compatible server that runs already (openai:http://HOST:PORT/v1)",
        engine_class="dynamo.worker.engines.openai.engine:OpenAiServer",
        extra="openai", package="aiohttp", reads="tokenizer", needs_model=False, cpu_only=True,
    ),
    EngineName.PYTHON: EngineTraits(
        title="a Python file of yours",
        engine_class="dynamo.worker.engines.python.engine:Python",
        needs_model=False, disaggregated=True,
    ),
}  # fmt: skip


def kv_block_sizes() -> str:
    """Return the default sizes of KV blocks as a sentence, for helps and descriptions."""
    others = [f"{t.kv_block_size} with {name}" for name, t in CATALOG.items() if t.kv_block_size != KV_BLOCK_SIZE]
    own = [name.value for name, traits in CATALOG.items() if traits.chooses_kv_block_size]
    return (
        f"Tokens in a KV block. Default: {', '.join([str(KV_BLOCK_SIZE), *others])}; {', '.join(own)} chooses its own."
    )


def traits_of(name: str) -> EngineTraits:
    """Return an engine's row; raises `ValueError` for a name that is no engine's."""
    return CATALOG[EngineName(name)]


def names() -> list[str]:
    """Return all names, in alphabetical order."""
    return sorted(engine.value for engine in CATALOG)
