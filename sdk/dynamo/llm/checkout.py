"""A model folder in Hugging Face's layout: what its small JSON files say becomes a card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.card import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    FileRef,
    ModelCard,
)
from dynamo.llm.files import file_ref
from dynamo.llm.segments import Layout
from dynamo.llm.sources import LocalModel
from dynamo.runtime.errors import InvalidArgument

_FILES: Final = {
    TOKENIZER: "tokenizer.json",
    TOKENIZER_CONFIG: "tokenizer_config.json",
    CONFIG: "config.json",
    GENERATION_CONFIG: "generation_config.json",
    CHAT_TEMPLATE: "chat_template.jinja",
}
_NAMED_TEMPLATES: Final = "additional_chat_templates"
_SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
_UNLIMITED: Final = 10**9
"""transformers writes 1e30 as `model_max_length` where nobody set one."""


def open_checkout(folder: Path) -> LocalModel:
    """Describe the model in `folder`."""
    paths = {role: folder / name for role, name in _FILES.items() if (folder / name).is_file()}
    if TOKENIZER not in paths:
        raise InvalidArgument(_no_tokenizer(folder))
    paths |= {f"{CHAT_TEMPLATE}.{path.stem}": path for path in sorted((folder / _NAMED_TEMPLATES).glob("*.jinja"))}
    config, settings, generation = (
        read_json(paths[role]) if role in paths else {} for role in (CONFIG, TOKENIZER_CONFIG, GENERATION_CONFIG)
    )
    tokens = read_tokens(paths[TOKENIZER])
    special = special_tokens(settings)
    refs: dict[str, FileRef] = {role: file_ref(path) for role, path in paths.items()}
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


def _id_of(tokens: list[str | None], content: str | None) -> int | None:
    return tokens.index(content) if content is not None and content in tokens else None


def read_json(path: Path) -> dict[str, Any]:
    """Read an object, or say in a sentence why not."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{str(path)!r} is no valid JSON (is it cut off?): {error}") from error
    if not isinstance(data, dict):
        raise InvalidArgument(f"{str(path)!r} must hold a JSON object")
    return data


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Read the special tokens by name; each is a string or an `AddedToken` object."""
    found = {}
    for name in _SPECIAL:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            found[name] = content
    return found


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
    found = [value for value in ids if isinstance(value, int)]
    if of_tokenizer is not None and of_tokenizer not in found:
        found.append(of_tokenizer)
    return found


def templates_of(settings: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """Return the default template and the named ones of a tokenizer configuration."""
    value = settings.get("chat_template")
    if isinstance(value, str):
        return value, {}
    named = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
            named[str(entry.get("name"))] = entry["template"]
    return named.pop("default", None), named


def read_tokens(path: Path) -> list[str | None]:
    """Read the tokens of a `tokenizer.json` by id."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Layout).take_tokens()
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidArgument(f"{str(path)!r} is no valid tokenizer file (is it cut off?): {error}") from error


def _no_tokenizer(folder: Path) -> str:
    try:
        weights = sorted(path.name for path in folder.glob("*.gguf"))
        known = sorted(path.name for path in folder.iterdir())[:5]
    except OSError as error:
        return f"no permission to read the folder {str(folder)!r}: {error.strerror}"
    if weights:
        return f"the folder {str(folder)!r} has no tokenizer.json: give the path of its file {weights[0]!r} instead"
    if "tokenizer.model" in known or (folder / "tokenizer.model").exists():
        return (
            f"the folder {str(folder)!r} has a tokenizer.model but no tokenizer.json, which is needed here; "
            "convert it with AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    has = f"it has {', '.join(known)}" if known else "it is empty"
    return f"the folder {str(folder)!r} is no model folder: no tokenizer.json in it ({has})"
