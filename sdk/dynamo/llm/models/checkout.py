"""A model folder in Hugging Face's layout: what its small JSON files say becomes a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.hub.names import Weights
from dynamo.llm.model_card import (
    CHAT_TEMPLATE,
    CHAT_TEMPLATE_JSON,
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    FileRef,
    ModelCard,
)
from dynamo.llm.models.file_cache import FileCache, file_ref
from dynamo.llm.models.local_model import LocalModel
from dynamo.llm.models.tokenizer_files import find_tokenizer, is_pointer
from dynamo.llm.processing.template_files import read_json, too_deep
from dynamo.llm.tokenizer.segment_cache import Layout
from dynamo.runtime.errors import InvalidArgument

_FILES: Final = {
    TOKENIZER_CONFIG: "tokenizer_config.json",
    CONFIG: "config.json",
    GENERATION_CONFIG: "generation_config.json",
    CHAT_TEMPLATE: "chat_template.jinja",
    CHAT_TEMPLATE_JSON: "chat_template.json",
}
_NAMED_TEMPLATES: Final = "additional_chat_templates"
_SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
_UNLIMITED: Final = 10**9
"""transformers writes 1e30 as `model_max_length` where nobody set one."""


def open_checkout(folder: Path, cache: FileCache, weights: Weights = "any") -> LocalModel:
    """Describe the model in `folder`; a tokenizer of another form than `tokenizer.json` is converted into `cache`."""
    paths = {role: folder / name for role, name in _FILES.items() if (folder / name).is_file()}
    paths |= {f"{CHAT_TEMPLATE}.{path.stem}": path for path in sorted((folder / _NAMED_TEMPLATES).glob("*.jinja"))}
    config, settings, generation = (
        read_json(paths[role]) if role in paths else {} for role in (CONFIG, TOKENIZER_CONFIG, GENERATION_CONFIG)
    )
    tokenizer = find_tokenizer(folder, settings, cache)
    if tokenizer is None:
        raise InvalidArgument(_no_tokenizer(folder))
    if weights != "none":
        check_weights(folder)
    refs: dict[str, FileRef] = {role: file_ref(path) for role, path in paths.items()}
    refs[TOKENIZER], paths[TOKENIZER] = tokenizer
    tokens = read_tokens(paths[TOKENIZER])
    special = special_tokens(settings)
    card = ModelCard(
        name=folder.resolve().name,
        tokenizer="hf",
        context_length=context_length(config, settings),
        vocab_size=len(tokens),
        eos_token_ids=eos_ids(config, generation, _id_of(tokens, special.get("eos_token"))),
        bos_token_id=_id_of(tokens, special.get("bos_token")),
        special_tokens=special,
        files=refs,
    )
    return LocalModel(card, {refs[role].digest: path for role, path in paths.items()}, folder)


def check_weights(folder: Path) -> None:
    """Refuse a folder whose weights are not all there; one without any is nobody's mistake yet."""
    for index in sorted(folder.glob("*.index.json")):
        shards = read_json(index).get("weight_map")
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
        missing = [name for name in names if not (folder / name).exists()]
        # Where none of them is there, the weights lie in another form beside.
        if missing and len(missing) < len(names):
            raise InvalidArgument(
                f"{len(missing)} of {len(names)} parts of the model in {str(folder)!r} are missing "
                f"({missing[0]}): load it again"
            )
    for path in sorted(folder.glob("*.safetensors")):
        if is_pointer(path):
            raise InvalidArgument(
                f"{str(path)!r} is a pointer of git-lfs and not the file itself: run `git lfs pull` in its folder"
            )


def _id_of(tokens: list[str | None], content: str | None) -> int | None:
    return tokens.index(content) if content is not None and content in tokens else None


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Read the special tokens by name; each is a string or an `AddedToken` object."""
    contents = {}
    for name in _SPECIAL:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            contents[name] = content
    return contents


def context_length(config: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """Read the longest sequence that the model was made for."""
    text = config.get("text_config")
    for source, key in (
        (config, "max_position_embeddings"),
        (text if isinstance(text, Mapping) else {}, "max_position_embeddings"),
        (config, "n_positions"),
        (settings, "model_max_length"),
    ):
        value = source.get(key)
        if isinstance(value, (int, float)) and 0 < value < _UNLIMITED:
            return int(value)
    return None


def eos_ids(config: Mapping[str, Any], generation: Mapping[str, Any], of_tokenizer: int | None) -> list[int]:
    """Collect the ids that end a text: generation's (one or a list), else the configuration's, and the tokenizer's."""
    text = config.get("text_config")
    places = (generation, config, text if isinstance(text, Mapping) else {})
    stated: Any = next((place["eos_token_id"] for place in places if place.get("eos_token_id") is not None), [])
    ids = stated if isinstance(stated, list) else [stated]
    numbers = [value for value in ids if isinstance(value, int)]
    if of_tokenizer is not None and of_tokenizer not in numbers:
        numbers.append(of_tokenizer)
    return numbers


def read_tokens(path: Path) -> list[str | None]:
    """Read the tokens of a `tokenizer.json` by id."""
    try:
        layout = msgspec.json.decode(path.read_bytes(), type=Layout)
        layout.check()
        return layout.take_tokens()
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidArgument(f"{str(path)!r} is no valid tokenizer file (is it cut off?): {error}") from error
    except RecursionError as error:
        raise too_deep(path) from error


def _no_tokenizer(folder: Path) -> str:
    try:
        if any(is_pointer(path) for path in folder.glob("*token*")):
            return f"the tokenizer in {str(folder)!r} is a pointer of git-lfs: run `git lfs pull` in that folder"
        weights = sorted(path.name for path in folder.glob("*.gguf"))
        known = sorted(path.name for path in folder.iterdir())[:5]
    except OSError as error:
        return f"no permission to read the folder {str(folder)!r}: {error.strerror}"
    if weights:
        return f"the folder {str(folder)!r} has no tokenizer.json: give the path of its file {weights[0]!r} instead"
    has = f"it has {', '.join(known)}" if known else "it is empty"
    return (
        f"the folder {str(folder)!r} is no model folder: no tokenizer.json, tokenizer.model or *.tiktoken in it ({has})"
    )
