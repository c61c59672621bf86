"""Engines by name; each is imported only when it is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.hub_names import Weights
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.settings import unknown_name

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.engine import Engine, Node
    from dynamo.worker.settings import WorkerSettings

BUILT: Final = {
    "echo_core": "dynamo.worker.engines.echo:EchoCore",
    "echo_full": "dynamo.worker.engines.echo:EchoFull",
    "llamacpp": "dynamo.worker.engines.llamacpp:LlamaCpp",
    "mistralrs": "dynamo.worker.engines.mistralrs:MistralRs",
    "mocker": "dynamo.worker.engines.mocker:Mocker",
    "python": "dynamo.worker.engines.python:Python",
    "sglang": "dynamo.worker.engines.sglang:SgLang",
    "trtllm": "dynamo.worker.engines.trtllm:TrtLlm",
    "vllm": "dynamo.worker.engines.vllm:Vllm",
}
NODES: Final = {
    "mocker": "dynamo.worker.engines.mocker:MockNode",
    "sglang": "dynamo.worker.engines.sglang:SgLangNode",
    "vllm": "dynamo.worker.engines.vllm_beside:VllmNode",
}
"""Engines whose replica can be a group of nodes: what runs on the nodes beside the leader."""
WITHOUT_WEIGHTS: Final = ("echo_core", "echo_full", "mocker")
"""Engines that only pretend: of a model they need its tokenizer."""
ONLY_GGUF: Final = ("llamacpp",)
"""Engines that read nothing but GGUF files."""
ONLY_FOLDERS: Final = ("sglang", "trtllm", "vllm")
"""Engines that read no GGUF files."""
_BUILT_FOR_GPUS: Final = "rank*.engine"
"""What TensorRT-LLM's compiler writes, for one kind of GPU."""
TEXT_ENGINES: Final = ("echo_full",)
"""Engines that take text; their models have no tokenizer on the frontend. `takes_text` knows the others."""
PYTHON: Final = "python"


def create_engine(settings: WorkerSettings, model: LocalModel) -> Engine:
    """Make the engine that `settings` name, unstarted; `InvalidArgument` where there is none or an argument is bad."""
    target = BUILT.get(check_engine(settings.engine), "")
    settings.check()
    if settings.engine != PYTHON and (settings.python_file or settings.python_arg):
        raise InvalidArgument(f"--python-file is for --engine python, not for {settings.engine}")
    check_nodes(settings)
    created: Engine = _imported(target)(settings, model)
    return created


def create_node(settings: WorkerSettings, model: LocalModel) -> Node:
    """Make the engine's part on a node that isn't the leader, unstarted; raises as `create_engine`."""
    settings.check()
    check_engine(settings.engine)
    check_nodes(settings)
    created: Node = _imported(NODES[settings.engine])(settings, model)
    return created


def check_nodes(settings: WorkerSettings) -> None:
    """Raise `InvalidArgument` where the engine can't run over as many nodes as asked for."""
    if settings.num_nodes > 1 and settings.engine == "trtllm":
        raise InvalidArgument(
            "engine trtllm runs over several nodes by MPI, which starts the worker: leave --num-nodes at 1, and see"
            " docs/engines/trtllm.md for the mpirun line"
        )
    if settings.num_nodes > 1 and settings.engine not in NODES:
        raise InvalidArgument(
            f"engine {settings.engine!r} runs on one node; leave --num-nodes at 1, or use one of {', '.join(NODES)}"
        )


def check_source(settings: WorkerSettings) -> None:
    """Raise `InvalidArgument` where the engine can't read the kind of file that is named, before it is fetched."""
    if settings.engine in ONLY_FOLDERS and settings.model_path.lower().endswith(".gguf"):
        raise InvalidArgument(
            f"engine {settings.engine} reads folders of safetensors, not .gguf files: name the folder, or take llamacpp"
            " or mistralrs"
        )
    if settings.engine == "trtllm" and settings.model_path and any(Path(settings.model_path).glob(_BUILT_FOR_GPUS)):
        raise InvalidArgument(
            f"{settings.model_path} holds an engine that trtllm-build made, and trtllm runs checkouts here, on its"
            " PyTorch backend: name the folder of the model itself"
        )


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def weights_of(engine: str) -> Weights:
    """Return what an engine reads of a model."""
    return "none" if engine in WITHOUT_WEIGHTS else "gguf" if engine in ONLY_GGUF else "any"


def takes_text(settings: WorkerSettings) -> bool:
    """Whether the engine that `settings` name gets text: always, or as its user says."""
    return settings.engine in TEXT_ENGINES or (settings.engine == PYTHON and settings.python_mode == "text")


def check_engine(name: str) -> str:
    """Return the name of an engine that can run, or say which can."""
    if not name:
        raise InvalidArgument(f"--engine is missing; choose one of {', '.join(BUILT)}")
    if name not in BUILT:
        raise unknown_name("engine", name, list(BUILT))
    return name
