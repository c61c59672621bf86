"""Looks into the models that pipelines name: headers, sizes and folders of files, the cache of the hub. Bounded."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dynamo.cli.diagnosis.machine import ModelFact

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

_MOST_HEADER: Final = 100 << 20
"""Bytes of a safetensors header, as its own library has it."""
_MOST_JSON: Final = 8 << 20
_MOST_FILES: Final = 256
_POINTER: Final = b"version https://git-lfs"
_NO_GGUF: Final = "the folder has no .gguf file, and the engine reads nothing else"
_ON: Final = ("1", "true", "yes", "on")


def models(
    pipelines: Sequence[DynamoPipeline], folder: Path, environment: Mapping[str, str] | None = None
) -> tuple[ModelFact, ...]:
    """Look at the models that are files here, and with HF_HUB_OFFLINE at the hub's cache; claims are passed over."""
    offline = (environment or {}).get("HF_HUB_OFFLINE", "").lower() in _ON
    return tuple(
        ModelFact(source, pipeline.name, problem, "HF_HUB_OFFLINE" in problem)
        for pipeline in pipelines
        if (source := pipeline.spec.model.source) and not source.startswith(("pvc://", "package://"))
        for problem in [_problem(source, folder, offline=offline, gguf=_wants_gguf(pipeline))]
    )


def _wants_gguf(pipeline: DynamoPipeline) -> bool:
    from dynamo.engine_catalog import traits_of

    return any(traits_of(component.engine.value).reads == "gguf" for component in pipeline.spec.components)


def _problem(source: str, folder: Path, *, offline: bool, gguf: bool) -> str:
    from dynamo.llm.models.gguf_header import read_header
    from dynamo.llm.models.paths import find_path, is_of_hub
    from dynamo.runtime.errors import DynamoException

    if "://" not in source and ((folder / source).exists() or source.startswith(("./", "../"))):
        source = str(folder / source)  # a worker of `dynamo up` runs in the file's folder
    try:
        if is_of_hub(source):
            return _not_cached(source, gguf=gguf) if offline else ""
        path = find_path(source)
        if path.suffix == ".gguf":
            if problem := _pointer(path):
                return problem
            read_header(path)
        elif path.is_dir() and not any(path.glob("*.gguf")):
            return _of_checkout(path) or (_NO_GGUF if gguf else "")
    except PermissionError as error:
        return f"you may not read it: chmod u+r {error.filename or source}"
    except (DynamoException, OSError, ValueError) as error:
        return str(error)
    return ""


def _not_cached(source: str, *, gguf: bool) -> str:
    """Return what of a model of the hub isn't in the cache; asks nobody."""
    from dynamo.llm.hub.fetch import cached
    from dynamo.runtime.errors import InvalidArgument

    try:
        cached(source, weights="gguf" if gguf else "any")
    except InvalidArgument as error:
        return str(error)
    except ImportError:
        return ""
    return ""


def _pointer(path: Path) -> str:
    """Say that git has left a pointer in the file's place."""
    with path.open("rb") as file:
        is_pointer = file.read(len(_POINTER)) == _POINTER
    return f"{path.name} is a pointer of git-lfs, not the file itself: git lfs pull" if is_pointer else ""


def _of_checkout(folder: Path) -> str:
    """Return what is wrong with a folder of safetensors; empty where nothing is."""
    config = folder / "config.json"
    if not config.is_file():
        return "the folder has neither config.json nor a .gguf file"
    if not isinstance(_json(config), dict):
        return "config.json is no JSON object"
    if problem := _pointer(config):
        return problem
    for file in sorted(folder.glob("*.safetensors"))[:_MOST_FILES]:
        if problem := _pointer(file) or _of_safetensors(file):
            return problem
    return _missing_shards(folder) or _no_tokenizer(folder)


def _of_safetensors(path: Path) -> str:
    """Compare a header with the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= _MOST_HEADER:
            return f"{path.name} is no safetensors file: its header can't be read"
        if 8 + length > size:
            return f"{path.name} is cut off: it has {size} bytes, and its header alone takes {8 + length}; get it again"
        if length > _MOST_JSON:  # of thousands of tensors; its worker reads it
            return ""
        header = _object(file.read(length))
    ends = [tensor["data_offsets"][1] for tensor in header.values() if _has_offsets(tensor)]
    if header == {} or (needed := 8 + length + max(ends, default=0)) > size:
        cut = "its header can't be read" if header == {} else f"it has {size} of the {needed} bytes it announces"
        return f"{path.name} is cut off or damaged: {cut}; get it again"
    return ""


def _has_offsets(tensor: Any) -> bool:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    return isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(offset, int) for offset in offsets)


def _missing_shards(folder: Path) -> str:
    index = _json(folder / "model.safetensors.index.json")
    placed = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in placed.values()}) if isinstance(placed, dict) else []
    missing = [name for name in names[:_MOST_FILES] if not (folder / name).is_file()]
    return f"{len(missing)} of its {len(names)} files of weights are missing: {missing[0]}" if missing else ""


def _no_tokenizer(folder: Path) -> str:
    known = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    named = known or any(folder.glob("*.tiktoken"))
    return "" if named else "the folder has no tokenizer: neither tokenizer.json, tokenizer.model nor *.tiktoken"


def _json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return json.loads(file.read(_MOST_JSON))
    except (OSError, ValueError, RecursionError):
        return None


def _object(content: bytes) -> dict[str, Any]:
    try:
        made = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return made if isinstance(made, dict) else {}
