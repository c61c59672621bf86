"""Engines by name; each is imported only when it is asked for."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.engine_catalog import CATALOG, EngineName, Reads, names, traits_of
from dynamo.llm.hub.names import Weights
from dynamo.llm.models.paths import is_of_hub
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.settings import unknown_name

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.engine import Engine, Node
    from dynamo.worker.settings import WorkerSettings

_BUILT_FOR_GPUS: Final = "rank*.engine"
"""What TensorRT-LLM's compiler writes, for one kind of GPU."""
_WEIGHTS: Final[dict[Reads, Weights]] = {"any": "any", "gguf": "gguf", "folder": "any", "tokenizer": "none"}
PYTHON: Final = EngineName.PYTHON.value
OPENAI: Final = EngineName.OPENAI.value


def create_engine(settings: WorkerSettings, model: LocalModel) -> Engine:
    """Make the engine that `settings` name, unstarted; `InvalidArgument` where there is none or an argument is bad."""
    traits = traits_of(check_engine(settings.engine))
    settings.check()
    if settings.engine != PYTHON and (settings.python_file or settings.python_arg):
        raise InvalidArgument(f"--python-file is for --engine python, not for {settings.engine}")
    check_nodes(settings)
    created: Engine = _imported(traits.engine_class)(settings, model)
    return created


def create_node(settings: WorkerSettings, model: LocalModel) -> Node:
    """Make the engine's part on a node that isn't the leader, unstarted; raises as `create_engine`."""
    settings.check()
    traits = traits_of(check_engine(settings.engine))
    check_nodes(settings)
    created: Node = _imported(traits.node_class)(settings, model)
    return created


def check_nodes(settings: WorkerSettings) -> None:
    """Raise `InvalidArgument` where the engine can't run over as many nodes as asked for."""
    if settings.num_nodes <= 1 or traits_of(settings.engine).node_class:
        return
    if settings.engine == EngineName.TRTLLM:
        raise InvalidArgument(
            "engine trtllm runs over several nodes by MPI, which starts the worker: leave --num-nodes at 1, and see"
            " docs/how-to/serve/engines/trtllm.md for the mpirun line"
        )
    others = ", ".join(name for name in names() if traits_of(name).node_class)
    raise InvalidArgument(
        f"engine {settings.engine!r} runs on one node; leave --num-nodes at 1, or use one of {others}"
    )


def check_source(settings: WorkerSettings) -> None:
    """Raise `InvalidArgument` where the engine can't read the kind of file that is named, before it is fetched."""
    if traits_of(settings.engine).reads == "folder" and settings.model_path.lower().endswith(".gguf"):
        raise InvalidArgument(
            f"engine {settings.engine} reads folders of safetensors, not .gguf files: name the folder, or take llamacpp"
            " or mistralrs"
        )
    if (
        settings.engine == EngineName.TRTLLM
        and settings.model_path
        and any(Path(settings.model_path).glob(_BUILT_FOR_GPUS))
    ):
        raise InvalidArgument(
            f"{settings.model_path} holds an engine that trtllm-build made, and trtllm runs checkouts here, on its"
            " PyTorch backend: name the folder of the model itself"
        )


def check_installed(engine: str, source: str) -> None:
    """Raise `InvalidArgument` where a model would be downloaded for an engine whose package isn't here."""
    traits = traits_of(engine)
    if not traits.package or traits.package in sys.modules or not is_of_hub(source):
        return
    if importlib.util.find_spec(traits.package) is None:
        raise InvalidArgument(
            f"engine {engine} is not installed, so nothing of {source} was downloaded: {install_hint(traits.extra)}"
        )


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def weights_of(engine: str) -> Weights:
    """Return which weights of a model an engine reads; any, where no engine is named."""
    return _WEIGHTS[traits_of(engine).reads] if engine in CATALOG else "any"


def loading_none() -> list[str]:
    """Return the names of the engines that load no weights."""
    return [name for name in names() if not traits_of(name).loads_weights]


def takes_text(settings: WorkerSettings) -> bool:
    """Return whether the engine that `settings` name gets text: always, or as its user says."""
    if settings.engine == PYTHON:
        return settings.python_mode == "text"
    if settings.engine == OPENAI:
        return not settings.model_path
    return settings.engine in CATALOG and traits_of(settings.engine).takes_text


def server_model_name(settings: WorkerSettings, stop: threading.Event | None = None) -> str:
    """Return the name of the model of the server that engine `openai` asks; blocks until the server is ready."""
    try:
        from dynamo.worker.engines.openai.discovery import served_name
    except ImportError as error:
        raise InvalidArgument(f"engine openai can't be loaded ({error}): {install_hint('openai')}") from error
    return served_name(settings, stop)


def check_engine(name: str) -> str:
    """Return the name of an engine that can run, or say which can."""
    if not name:
        raise InvalidArgument(f"--engine is missing; choose one of {', '.join(names())}")
    if name not in names():
        raise unknown_name("engine", name, names())
    return name
